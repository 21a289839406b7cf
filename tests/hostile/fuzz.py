"""Run cases by their numbers: many, in a process for each core, or one, to look at it closely.

``python -m tests.hostile.fuzz 4711 FOLDER`` makes the damaged store of case 4711 in FOLDER and says what is wrong.
"""

import faulthandler
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from types import FrameType

from tests.hostile.cases import Bench
from tests.hostile.mutations import write

CASE_LIMIT_S = 2.0  # of processor time, for the machine may be busy
HANG_S = 60  # of any time
MEMORY_MAX = 256 * 1048576  # above what a worker takes before its first case
CHUNK = 50


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


def run_cases(numbers: range, processes: int = os.cpu_count() or 1) -> Report:
    """Run the cases of these numbers in several processes; if one dies, the cases under way are named."""
    total = Report()
    chunks = [numbers[at : at + CHUNK] for at in range(0, len(numbers), CHUNK)]
    with (
        tempfile.TemporaryDirectory(prefix="whence-hostile-") as folder,
        ProcessPoolExecutor(processes, get_context("spawn"), _start_worker, (folder,)) as pool,
    ):
        for future in as_completed([pool.submit(_run_chunk, chunk) for chunk in chunks]):
            if error := future.exception():
                under_way = [path.read_text() for path in Path(folder).glob("*/case")]
                total.failures.append(f"{type(error).__name__}: {error}; under way were the cases {under_way}")
                pool.shutdown(wait=False, cancel_futures=True)
                break
            total.add(future.result())
    return total


# One worker


class TookTooLong(BaseException):
    """No Exception, so that nobody takes it for an error of the store."""


_bench: Bench
_folder: Path


def _start_worker(folder: str) -> None:
    global _bench, _folder
    _folder = Path(tempfile.mkdtemp(dir=folder))
    _bench = Bench(_folder)
    _bench.warm_up()
    faulthandler.enable()
    signal.signal(signal.SIGPROF, _stop_case)
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MEMORY_MAX
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _stop_case(signal_number: int, frame: FrameType | None) -> None:
    raise TookTooLong


def _run_chunk(numbers: range) -> Report:
    total = Report()
    for number in numbers:
        (_folder / "case").write_text(str(number))
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        total.add(_run_case(number))
    faulthandler.cancel_dump_traceback_later()
    total.rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return total


def _run_case(number: int) -> Report:
    with _bench.damaged(number) as case:
        failures = []
        started = time.process_time()
        # It rings again and again, for an exception is lost where Python calls back from C.
        signal.setitimer(signal.ITIMER_PROF, CASE_LIMIT_S, CASE_LIMIT_S)
        try:
            failures += [f"{case}, {done}: {complaint}" for done, complaint in case.complaints()]
        except TookTooLong:
            failures.append(f"{case} took more than {CASE_LIMIT_S} s")
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return Report(1, case.outcomes, failures, time.process_time() - started, number)


def main(arguments: Sequence[str]) -> None:
    number, folder = int(arguments[0]), Path(arguments[1])
    case = Bench(folder).case(number)
    write(case.folder, case.store.mutation.changes)
    print(f"{case.folder}: {case}")
    for done, complaint in case.complaints():
        print(f"{done}: {complaint}")
    print(dict(case.outcomes))


if __name__ == "__main__":
    main(sys.argv[1:])
