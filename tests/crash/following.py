"""Follow a log that grows, in one process and without Spark: what tests of the follower share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.disks import UnflushedDisk
from tests.pipeline.test_build import build
from tests.reference import Record
from tests.store_maker import QUEUE_FILE_SIZE, log_bytes, message
from whence.files.disk import Disk
from whence.formats.buffers import Buffer
from whence.pipeline.build import Built
from whence.store.commit_log import CommitLog
from whence.store.follower import GROUP, Follower, FollowSettings
from whence.store.index_file import Shape
from whence.store.log_scan import LogScan
from whence.store.message_store import Dialect
from whence.store.sidecar import read_sidecar
from whence.store.spill import Recipe, Stretch, spill_stretch

KINDS = ("index", "consumequeue", "batchconsumequeue", "times")


class Killed(BaseException):
    """The process is killed here."""


class StepDisk(UnflushedDisk):
    """Calls ``before`` with the number of each step that changes a file, just before it is done."""

    flushes_at_once = 1  # steps come one after the other, and what is raised ends the work

    def __init__(self, before: Callable[[int], None]) -> None:
        self._before = before
        self.steps = 0

    def _step(self) -> None:
        self.steps += 1
        self._before(self.steps)

    def create(self, path: Path, size: int, *, reserve: bool):
        self._step()
        return super().create(path, size, reserve=reserve)

    def pwrite(self, path: Path, descriptor: int, data: Buffer, position: int) -> int:
        self._step()
        return super().pwrite(path, descriptor, data, position)

    def rename(self, path: Path, target: Path) -> None:
        self._step()
        super().rename(path, target)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)

    def fsync(self, path: Path, descriptor: int) -> None:
        self._step()


def killing(at: int) -> StepDisk:
    """A disk on which the process is killed before its ``at``-th step."""

    def before(step: int) -> None:
        if step >= at:
            raise Killed

    return StepDisk(before)


@dataclass(frozen=True)
class Made:
    """How a log is followed."""

    shape: Shape
    dialect: Dialect = Dialect.V5_5
    queue_file_size: int = QUEUE_FILE_SIZE
    batch_topics: tuple[str, ...] = ()

    def build(self, store: Path, sidecar: Path) -> dict[str, bytes]:
        """What a build makes of the log, from nothing."""
        shutil.rmtree(sidecar, ignore_errors=True)
        self.build_on(store, sidecar)
        return made_files(sidecar)

    def build_on(self, store: Path, sidecar: Path) -> Built:
        """What a build does that goes on with what is there."""
        return build(
            store,
            sidecar,
            shape=self.shape,
            dialect=self.dialect,
            queue_file_size=self.queue_file_size,
            batch_topics=self.batch_topics,
        )

    def follower(self, store: Path, sidecar: Path, disk: Disk | None = None) -> tuple[Follower, CommitLog]:
        sidecar.mkdir(exist_ok=True)
        log = CommitLog(store / "commitlog")
        is_batch = self.batch_topics.__contains__
        settings = FollowSettings(self.shape, self.dialect, self.queue_file_size, is_batch)
        return Follower(log, sidecar, settings, read_sidecar(sidecar), disk or UnflushedDisk()), log

    def follow(self, store: Path, sidecar: Path, random: Random, disk: Disk | None = None) -> None:
        """Follow the log to its end, in steps of any size."""
        follower, log = self.follower(store, sidecar, disk)
        try:
            if not follower.check():
                return
            steps(follower, log, random, self.dialect, sidecar, self.batch_topics)
            follower.close()
        finally:
            log.close()


def steps(
    follower: Follower,
    log: CommitLog,
    random: Random,
    dialect: Dialect,
    sidecar: Path,
    batch_topics: tuple[str, ...] = (),
) -> None:
    """Put what there is, in batches or spills, and publish now and then."""
    end = log.end_offset(boundary=follower.end_offset)
    offsets = [
        int(offset)
        for batch in LogScan(log, follower.end_offset, end, tags=False, check_crc=False)
        for offset in batch.messages["physical_offset"]
    ]
    holes: list[tuple[int, int]] = []  # since the last publication
    while follower.end_offset < end:
        later = [offset for offset in offsets if offset > follower.end_offset]
        to = random.choice([end, *later[: random.randint(1, 40)]])
        if random.random() < 0.5:
            scan = LogScan(log, follower.end_offset, to, tags=dialect is Dialect.V5_5)
            for batch in scan:
                follower.put(batch)
            holes += scan.holes
        else:
            holes += spill(follower, log, to, dialect, sidecar, batch_topics)
        if to == end or random.random() < 0.5:
            follower.publish(to, holes)
            holes = []


def spill(
    follower: Follower, log: CommitLog, to: int, dialect: Dialect, sidecar: Path, batch_topics: tuple[str, ...]
) -> list[tuple[int, int]]:
    work = sidecar.parent / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    recipe = Recipe(tags=dialect is Dialect.V5_5, batch_topics=batch_topics, groups=GROUP + 1, flush=False)
    holes: list[tuple[int, int]] = []
    for number, (begin, end) in enumerate(log.pieces(follower.end_offset, to)):
        path, _ = log.path_of(begin)
        base = log.base_of(begin)
        assert base is not None
        stretch = Stretch(number, str(path), base, begin, end, is_exact=True, is_last=False)
        spilled = spill_stretch(stretch, recipe, work, f"{number}", UnflushedDisk())
        follower.put_spill(work, spilled)
        holes += spilled.holes
    return holes


def made_files(sidecar: Path) -> dict[str, bytes]:
    """What readers use of a sidecar, apart from what it says of itself."""
    return {
        str(path.relative_to(sidecar)): path.read_bytes()
        for kind in KINDS
        for path in sorted((sidecar / kind).rglob("*"))
        if path.is_file()
    }


def random_messages(random: Random, count: int) -> list[Record]:
    """Messages with and without keys, some large, whose clock steps back now and then."""
    messages = []
    at = 0
    for number in range(count):
        at += random.choice([0, 1, 1, 5, 1000, -3])
        keys = random.choice(["", "", f"k{number}", f"k{number} shared", "a b c d", f"few{random.randrange(5)}"])
        messages.append(
            message(
                keys=keys,
                tags=random.choice(["", "", "t", "ü"]),
                topic=random.choice(["T", "U", "%RETRY%G"]),
                queue=random.randrange(2),
                body=bytes(random.choice([4, 4, 60, 700])),
                at=at,
            )
        )
    return messages


def write_log(store: Path, placed: Sequence[Record], *, file_size: int) -> None:
    """Make the log one of these records; its files stay the same files where they are there."""
    folder = store / "commitlog"
    folder.mkdir(parents=True, exist_ok=True)
    base = placed[0].physical_offset // file_size * file_size if placed else 0
    files = log_bytes(placed, base=base, file_size=file_size)
    for path in folder.iterdir():
        if path.name not in files:
            path.unlink()
    for name, data in files.items():
        path = folder / name
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(data)
