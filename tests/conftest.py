"""What all tests share: golden stores, Hypothesis profiles, long tests, and an honest last line."""

import gc
import os
import shutil
import signal
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

from tests.golden import GoldenStore

# The first call of a kernel compiles it, so neither a deadline nor "too slow" means anything here.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

JAVA_TOOLS = ("java", "mvn")
NO_JAVA = "needs " + " and ".join(JAVA_TOOLS) + " on the PATH"
# Files and folders that take minutes: begun last, one core would wait for them.
LONGEST = ("test_guide.py", "test_benchmarks.py", "compat", "spark", "crash", "examples")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("whence")
    group.addoption("--long", metavar="PART", help="run only the long tests, of this part (a number) or of all")
    group.addoption("--long-count", metavar="N", type=int, help="how many cases a long test runs")


def pytest_configure() -> None:
    """Do not ignore Ctrl-C, as what a shell runs in the background does: what tests start would ignore it, too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Let no collection of garbage look at all the tests again: that takes longer than most of them."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --long keep all but the long tests; with it keep only those of its part. The longest come first."""
    wanted = config.getoption("--long")

    def is_selected(item: pytest.Item) -> bool:
        marker = item.get_closest_marker("long")
        if wanted is None or marker is None:
            return (wanted is None) == (marker is None)
        return wanted in ("all", str(marker.kwargs["part"]))

    def rank(item: pytest.Item) -> int:
        names = (item.path.name, item.path.parent.name)
        return next((number for number, name in enumerate(LONGEST) if name in names), len(LONGEST))

    deselected = [item for item in items if not is_selected(item)]
    items[:] = [item for item in items if is_selected(item)]
    items.sort(key=rank)
    config.hook.pytest_deselected(items=deselected)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("compat") and not all(shutil.which(tool) for tool in JAVA_TOOLS):
        pytest.skip(NO_JAVA)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say in the very last line what was not proved: a skipped comparison is not a passed one."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    count = sum(NO_JAVA in str(report.longrepr) for report in reporter.stats.get("skipped", []))
    if count:
        reporter.write_line(f"NOT RUN: {count} compat tests, which compare with Apache's own classes: {NO_JAVA}")


@pytest.fixture
def long_count(request: pytest.FixtureRequest) -> int:
    """How many cases this long test runs: --long-count, or the count in its marker."""
    marker = request.node.get_closest_marker("long")
    given: int | None = request.config.getoption("--long-count")
    return int(marker.kwargs["count"]) if given is None else given


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GoldenStore]:
    """``golden(name)`` is a golden set, its store unpacked once a session. Tests that write use ``.copy``."""
    unpacked: dict[str, GoldenStore] = {}

    def get(name: str) -> GoldenStore:
        if name not in unpacked:
            unpacked[name] = GoldenStore.unpack(name, tmp_path_factory.mktemp(name))
        return unpacked[name]

    return get
