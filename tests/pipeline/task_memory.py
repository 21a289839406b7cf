"""How much memory the tasks of a build and of a verify take: ``python task_memory.py FOLDER SIZE LIMIT``.

Makes a log of about SIZE bytes, with messages of about 100 bytes, then scans it, makes index, queues and times of it
and checks them, with a limit of LIMIT bytes on anonymous memory above what the interpreter with the kernels takes.
Prints the peak of each task above that.

MALLOC_MMAP_THRESHOLD_ must be set: otherwise what one task has freed is kept for the next one, and is not seen in it.
"""

import ctypes
import json
import resource
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "src"))

from tests.reference import encode_record
from tests.store_maker import message
from whence.files.disk import Disk
from whence.pipeline.check_tasks import (
    IndexCheckTask,
    QueueCheckTask,
    TimesCheckTask,
    check_index_task,
    check_queues_task,
    check_times_task,
)
from whence.pipeline.plan import plan_index
from whence.pipeline.tasks import (
    TAKEN,
    IndexTask,
    QueueTask,
    ScanTask,
    TimesTask,
    build_index_task,
    build_queues_task,
    build_times_task,
    scan_stretch_task,
)
from whence.store.index_file import DEFAULT_SHAPE
from whence.store.spill import Recipe, Stretch

QUEUES = 8
FIRST_KEY = 10_000_000
AT_ONCE = 100_000


def make_log(path: Path, size: int) -> int:
    """One file of messages that differ in key, queue and offsets; gives how many there are."""
    text = str(FIRST_KEY).encode()
    template = np.frombuffer(encode_record(message(keys=text.decode(), body=b"b")), np.uint8)
    key_at = template.tobytes().index(text)
    count = size // len(template) // QUEUES * QUEUES
    with path.open("wb") as file:
        for first in range(0, count, AT_ONCE):
            numbers = np.arange(first, min(first + AT_ONCE, count))
            rows = np.tile(template, (len(numbers), 1))
            fields = ((12, 4, numbers % QUEUES), (20, 8, numbers // QUEUES), (28, 8, numbers * len(template)))
            for at, width, values in fields:
                rows[:, at : at + width] = values.astype(f">i{width}").view(np.uint8).reshape(-1, width)
            digits = (FIRST_KEY + numbers).astype("S8").view(np.uint8).reshape(-1, 8)
            rows[:, key_at : key_at + 8] = digits
            file.write(rows.data)
        file.truncate(size + 4096)
    return count


def anonymous_memory() -> int:
    """Bytes of memory of this process that are in use and belong to no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


def data_size() -> int:
    """What RLIMIT_DATA counts."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()


class Peak:
    """The most that was in use, looked at all the time."""

    def __init__(self) -> None:
        self.most = 0
        self._ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._ended.wait(0.002):
            self.most = max(self.most, anonymous_memory())

    def of(self, task: Callable[[Any], Any], given: Any) -> tuple[int, Any]:
        ctypes.CDLL(None).malloc_trim(0)
        self.most = before = anonymous_memory()
        result = task(given)
        self.most = max(self.most, anonymous_memory())
        return self.most - before, result


def run_tasks(folder: Path, size: int, run: Callable[[Callable[[Any], Any], Any], Any]) -> None:
    folder.mkdir()
    log, work = folder / f"{0:020}", folder / "work"
    work.mkdir()
    count = make_log(log, size)
    stretch = Stretch(0, str(log), 0, 0, log.stat().st_size, True, True)
    spilled = run(scan_stretch_task, ScanTask(stretch, Recipe(True, (), 2, False), str(work)))
    assert spilled.message_count == spilled.item_count == count
    Disk().replace(work / TAKEN, f"{spilled.name}\n".encode())
    shape = DEFAULT_SHAPE
    (plan,) = plan_index([spilled], shape.item_capacity - 1, 0)
    index = IndexTask("index", str(work), plan, shape.slot_capacity, shape.item_capacity, None, "", True)
    (built,) = run(build_index_task, index).files
    assert built.entry_count == count
    end = spilled.end_offset
    check = IndexCheckTask(
        work=str(work),
        path=built.path,
        slots=shape.slot_capacity,
        items=shape.item_capacity,
        ranges=plan.ranges,
        begin_offset=0,
        end_offset=end,
        before=None,
        is_first_known=True,
        begun=0,
        is_live=False,
        is_exact=True,
    )
    found = run(check_index_task, check)
    assert (found.is_healthy, found.item_count) == (True, count)
    queues = QueueTask("queues", str(work), 0, 6_000_000, (), str(folder / "none"), 0, True)
    files = run(build_queues_task, queues).files
    assert sum(file.entry_count for file in files) == count // 2
    root = next(parent for parent in Path(files[0].path).parents if parent.parent == work)
    checked = run(check_queues_task, QueueCheckTask(str(work), str(root), 0, (), 6_000_000, (), 0, end, False, True))
    assert (checked.damaged, checked.entry_count) == ((), count // 2)
    (times,) = run(
        build_times_task, TimesTask("times", str(work), (("0", 0, size, b"", (spilled.name,)),), True)
    ).files
    assert run(check_times_task, TimesCheckTask(str(work), ((times.path, (spilled.name,)),))) == ()
    shutil.rmtree(folder)


def main(folder: Path, size: int, limit: int) -> None:
    run_tasks(folder / "small", 2_000_000, lambda task, given: task(given))  # loads the kernels
    peak = Peak()
    peaks: dict[str, int] = {}

    def measured(task: Callable[[Any], Any], given: Any) -> Any:
        resource.setrlimit(resource.RLIMIT_DATA, (data_size() + limit, resource.RLIM_INFINITY))
        peaks[task.__name__], result = peak.of(task, given)
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return result

    run_tasks(folder / "large", size, measured)
    print(json.dumps(peaks))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
