"""Run mutations by their numbers: one, to look at it closely, or many, in a process for each core.

python -m tests.hostile.fuzz 4711 FOLDER     makes the damaged store of this number in FOLDER, tells what is wrong
"""

import faulthandler
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from random import Random
from types import FrameType

import whence
from tests.golden import GoldenStore
from tests.hostile.checks import Asked, DamagedStore, ask, complaints
from tests.hostile.mutations import Mutation, Target, mutate, write
from whence.cli.commands import main as main_command
from whence.door import Store
from whence.store import log_file
from whence.store.inspection import Kind, inspect_file

SETS = ("v5-direct", "v5-direct-crc", "v4-clean", "v53-clean")
CASE_LIMIT_S = 2.0  # of processor time, for the machine may be busy
HANG_S = 60  # of any time
MEMORY_MAX = 256 * 1048576  # above what a worker takes before its first case
CHUNK = 50
KERNEL_EVERY = 4  # of how many cases one is also scanned with the kernel
COMMAND_EVERY = 10  # and one is also asked through the command line


class TookTooLong(BaseException):
    """No Exception, so that nobody takes it for an error of the store."""


@dataclass
class Report:
    """What came of some cases."""

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    slowest: int = -1
    rss_kib: int = 0

    def add(self, other: "Report") -> None:
        self.cases += other.cases
        self.outcomes += other.outcomes
        self.failures += other.failures
        if other.slowest_s > self.slowest_s:
            self.slowest_s, self.slowest = other.slowest_s, other.slowest
        self.rss_kib = max(self.rss_kib, other.rss_kib)

    def __str__(self) -> str:
        outcomes = ", ".join(f"{count} {name}" for name, count in self.outcomes.most_common())
        return (
            f"{self.cases} cases; {outcomes}; slowest {self.slowest_s:.2f} s (case {self.slowest}); "
            f"a worker took {self.rss_kib // 1024} MiB; {len(self.failures)} failures"
        )


class Bench:
    """The golden stores in memory and on disk, to be damaged and mended again and again."""

    def __init__(self, folder: Path) -> None:
        self.targets: list[Target] = []
        self.folders: dict[str, Path] = {}
        for name in SETS:
            golden = GoldenStore.unpack(name, folder / name)
            self.targets.append(Target.load(golden))
            self.folders[name] = golden.store

    def case(self, number: int) -> tuple[Target, Mutation, Random]:
        random = Random(number)
        target, donor = random.sample(self.targets, 2)
        return target, mutate(target, donor, random), random

    @contextmanager
    def damaged(self, number: int) -> Iterator[tuple[DamagedStore, Path, Random]]:
        target, mutation, random = self.case(number)
        folder = self.folders[target.name]
        write(folder, mutation.changes)
        try:
            yield DamagedStore(target, mutation), folder, random
        finally:
            write(folder, {name: target.files.get(name) for name in mutation.changes})

    def run(self, number: int) -> Report:
        report = Report(1)
        with self.damaged(number) as (damaged, folder, random):
            title = f"case {number} ({damaged.target.name}: {damaged.mutation})"
            started = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, CASE_LIMIT_S)
            try:
                for asked, complaint in self._ask(damaged, folder, random, number, report):
                    report.failures.append(f"{title}, {asked}: {complaint}")
            except TookTooLong:
                report.failures.append(f"{title} took more than {CASE_LIMIT_S} s")
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            report.slowest_s, report.slowest = time.process_time() - started, number
        return report

    def _ask(
        self, damaged: DamagedStore, folder: Path, random: Random, number: int, report: Report
    ) -> Iterator[tuple[object, str]]:
        questions = ask(damaged.target, random)
        try:
            with whence.open(folder) as store:
                for asked in questions:
                    for complaint in self._answer(damaged, store, asked, random, report):
                        yield asked, complaint
                if number % KERNEL_EVERY == 0:
                    yield from self._compare_roads(store, folder, questions)
            yield from self._inspect(damaged.mutation, folder, random, report)
            if number % COMMAND_EVERY == 0:
                yield from self._command(folder, questions[random.randrange(len(questions))], random)
        except whence.WhenceError as error:
            report.outcomes["errors at open"] += 1
            yield from ((None, complaint) for complaint in _bad_error(error))
        except Exception as error:
            yield None, f"{type(error).__name__}: {error}"

    def _answer(
        self, damaged: DamagedStore, store: Store, asked: Asked, random: Random, report: Report
    ) -> Iterator[str]:
        explains = random.random() < 0.2
        try:
            if explains:
                explanation = store.explain(**asked.arguments)
                json.dumps(explanation.to_dict())
                answer = explanation.answer
            else:
                answer = store.find(**asked.arguments)
        except whence.WhenceError as error:
            report.outcomes["errors"] += 1
            yield from _bad_error(error)
            return
        except Exception as error:
            yield f"{type(error).__name__}: {error}"
            return
        report.outcomes["complete answers" if answer.receipt.complete else "incomplete answers"] += 1
        yield from complaints(damaged, asked, answer)
        if explains and not answer.receipt.truncated and len(answer) > 1:
            yield from _pages(store, asked, [message.physical_offset for message in answer])

    def _command(self, folder: Path, asked: Asked, random: Random) -> Iterator[tuple[object, str]]:
        """The same through the command line: no fault of its own, and nothing that a terminal would obey."""
        face = random.choice((["--json"], ["--format", "csv"], ["--format", "jsonl"], ["--body"], []))
        arguments = [random.choice(("find", "explain")), str(folder)]
        for name, value in asked.arguments.items():
            option = "--" + name.replace("_", "-")
            if name == "limit":
                arguments += ["--all"] if value is None else [f"--limit={value}"]
            else:
                arguments += [option] if value is True else [f"{option}={value}"]
        if arguments[0] == "find" or face in (["--json"], ["--body"]):
            arguments += face
        with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as complaints:
            status = main_command(arguments)
        if status not in range(5):
            yield arguments, f"status {status}: {complaints.getvalue()}"
        shown = output.getvalue() if face in ([], ["--body"]) else ""
        if not all(char.isprintable() or char == "\n" for char in shown + complaints.getvalue()):
            yield arguments, f"prints what a terminal obeys: {shown!r} {complaints.getvalue()!r}"

    def _inspect(self, mutation: Mutation, folder: Path, random: Random, report: Report) -> Iterator[tuple[str, str]]:
        """Look at damaged files one by one, also as what they are not."""
        there = [name for name, content in mutation.changes.items() if content is not None]
        for name in random.sample(there, min(2, len(there))):
            kind = random.choice((None, None, *Kind))
            start = random.choice((None, 0, 1, random.randrange(65536), 2**63))
            try:
                inspection = inspect_file(folder / name, kind=kind, start=start, limit=random.choice((1, 20, None)))
                json.dumps(inspection.to_dict())
                report.outcomes["inspected files"] += 1
            except whence.WhenceError as error:
                report.outcomes["errors of inspect"] += 1
                for complaint in _bad_error(error):
                    yield f"inspect {name} as {kind}", complaint
            except Exception as error:
                yield f"inspect {name} as {kind} from {start}", f"{type(error).__name__}: {error}"

    def _compare_roads(self, store: Store, folder: Path, questions: Sequence[Asked]) -> Iterator[tuple[Asked, str]]:
        """The kernel's scan must end in the same answer and the same damage as plain Python's."""
        plain_max, log_file.PLAIN_SCAN_MAX = log_file.PLAIN_SCAN_MAX, 0
        try:
            with whence.open(folder) as fast_store:
                for asked in (questions[1], questions[5]):
                    plain, fast = (_shown(each, {**asked.arguments, "scan": True}) for each in (store, fast_store))
                    if plain != fast:
                        yield asked, f"plain Python gives {plain}, the kernel {fast}"
        finally:
            log_file.PLAIN_SCAN_MAX = plain_max


def _shown(store: Store, arguments: dict[str, object]) -> object:
    arguments.pop("no_scan", None)
    try:
        answer = store.find(**arguments)
    except whence.WhenceError as error:
        return str(error)
    return [message.physical_offset for message in answer], answer.receipt.complete, answer.receipt.damage


def _pages(store: Store, asked: Asked, offsets: list[int]) -> Iterator[str]:
    """Page by page must come what comes at once."""
    arguments = {**asked.arguments, "limit": max(1, len(offsets) // 3)}
    paged: list[int] = []
    cursor = None
    while True:
        answer = store.find(**arguments, cursor=cursor)
        paged += [message.physical_offset for message in answer]
        cursor = answer.cursor
        if cursor is None or len(paged) > len(offsets):
            break
    if paged != offsets:
        yield f"in pages come {paged}, at once {offsets}"


def _bad_error(error: whence.WhenceError) -> Iterator[str]:
    """An error about a file's bytes names the file and the byte; any other names the file or folder."""
    if isinstance(error, whence.FormatError) and (error.path is None or error.position is None):
        yield f"{type(error).__name__} names no file and byte: {error}"
    if isinstance(error, whence.UsageError) and "is a folder" not in str(error):
        yield f"the question is right, and yet: UsageError: {error}"
    if "/" not in str(error):
        yield f"{type(error).__name__} names no file: {error}"


# Many cases


def run_cases(numbers: range, processes: int = os.cpu_count() or 1) -> Report:
    """Run the cases of these numbers in several processes; a case that kills its process is named."""
    total = Report()
    chunks = [numbers[at : at + CHUNK] for at in range(0, len(numbers), CHUNK)]
    with (
        tempfile.TemporaryDirectory(prefix="whence-hostile-") as folder,
        ProcessPoolExecutor(processes, get_context("spawn"), _start_worker, (folder,)) as pool,
    ):
        futures = {pool.submit(_run_chunk, chunk): chunk for chunk in chunks}
        for future in as_completed(futures):
            if error := future.exception():
                under_way = [path.read_text() for path in Path(folder).glob("*/case")]
                total.failures.append(f"{error}; under way were the cases {under_way}")
                break
            total.add(future.result())
    return total


_bench: Bench
_folder: Path


def _start_worker(folder: str) -> None:
    global _bench, _folder
    _folder = Path(tempfile.mkdtemp(dir=folder))
    _bench = Bench(_folder)
    signal.signal(signal.SIGPROF, _alarm)
    faulthandler.enable()
    _warm_up()
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    if pages:
        limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_MAX
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _warm_up() -> None:
    """Load all that is loaded late, so that the limits of a case measure the case."""
    for target in _bench.targets:
        folder = _bench.folders[target.name]
        with whence.open(folder) as store:
            for _ in _bench._compare_roads(store, folder, ask(target, Random(0))):
                pass


def _alarm(signal_number: int, frame: FrameType | None) -> None:
    raise TookTooLong


def _run_chunk(numbers: range) -> Report:
    total = Report()
    for number in numbers:
        (_folder / "case").write_text(str(number))
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        total.add(_bench.run(number))
    faulthandler.cancel_dump_traceback_later()
    total.rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return total


def main(arguments: Sequence[str]) -> None:
    number, folder = int(arguments[0]), Path(arguments[1])
    bench = Bench(folder)
    target, mutation, random = bench.case(number)
    print(f"{bench.folders[target.name]}: {mutation}")
    write(bench.folders[target.name], mutation.changes)
    report = Report()
    damaged = DamagedStore(target, mutation)
    for asked, complaint in bench._ask(damaged, bench.folders[target.name], random, number, report):
        print(f"{asked}: {complaint}")
    print(dict(report.outcomes))


if __name__ == "__main__":
    main(sys.argv[1:])
