"""Spills are put in the order of the log while others are still made, and published whatever becomes of these."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.crash.following import Made, made_files, random_messages, write_log
from tests.pipeline.test_build import OneByOne
from tests.store_maker import FILE_SIZE, T, place
from whence.errors import CorruptError, StoreError, TruncatedError
from whence.files.names import sidecar_of
from whence.pipeline import follow_puts
from whence.pipeline.follow_plan import FollowPlan, Ticket
from whence.pipeline.follow_puts import Puts
from whence.pipeline.follow_state import FollowMeter
from whence.pipeline.scanning import scan_stretches
from whence.pipeline.tasks import ScanTask, scan_stretch_task
from whence.store.commit_log import CommitLog
from whence.store.follower import GROUP
from whence.store.index_file import Shape
from whence.store.message_store import Dialect
from whence.store.sidecar import NAME, Sidecar, read_sidecar
from whence.store.spill import Recipe, Spilled, Stretch

RECORDS = place(random_messages(Random(3), 120))
END = RECORDS[-1].physical_offset + RECORDS[-1].size
LAST_FILE_FROM = next(
    number for number, record in enumerate(RECORDS) if record.physical_offset >= END // FILE_SIZE * FILE_SIZE
)
MADE = Made(Shape(7, 20), Dialect.V5_5)
RECIPE = Recipe(tags=True, batch_topics=(), groups=GROUP + 1, flush=False)
IN_TIME_S = 20.0


class Batch:
    """A log that is there as a whole, in stretches of a file each, and who puts them."""

    def __init__(self, store: Path) -> None:
        self.store, self.sidecar, self.work = store, sidecar_of(store), store.parent / "work"
        self.work.mkdir()
        write_log(store, RECORDS, file_size=FILE_SIZE)
        self.follower, self.log = MADE.follower(store, self.sidecar)
        self.meter = FollowMeter(CommitLog(store / "commitlog"))
        self.puts = Puts(self.follower, CommitLog(store / "commitlog"), self.meter)
        self.begin = self.puts.begin()
        plan = FollowPlan(CommitLog(store / "commitlog"), self.sidecar)
        self.stretches = plan.stretches(Ticket(END), 2)

    def scan(self, stretch: Stretch) -> Spilled:
        return scan_stretch_task(ScanTask(stretch, RECIPE, str(self.work)))

    def finish(self) -> None:
        self.puts.finish(self.work, scan_stretches(self.stretches, RECIPE, self.work, OneByOne()))

    def claim(self) -> Sidecar:
        claim = read_sidecar(self.sidecar)
        assert claim is not None
        return claim

    def await_put(self, offset: int) -> None:
        wait_for(lambda: self.follower.end_offset >= offset)


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + IN_TIME_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[Batch]:
    batch = Batch(tmp_path / "store")
    yield batch
    batch.log.close()


def test_what_is_spilled_is_put_while_the_rest_is_spilled(batch, tmp_path):
    with batch.puts.as_they_come(batch.work):
        for stretch in batch.stretches[:3]:
            batch.scan(stretch)
        batch.await_put(3 * FILE_SIZE)
        assert not batch.claim().indexed  # and is not published
        for stretch in reversed(batch.stretches[4:]):
            batch.scan(stretch)
        time.sleep(5 * follow_puts.LOOK_S)
        assert batch.follower.end_offset == 3 * FILE_SIZE  # the one behind is missing
        batch.scan(batch.stretches[3])
        batch.await_put(END)
    batch.finish()
    batch.puts.end()
    assert batch.claim().indexed_to == END
    assert made_files(batch.sidecar) == MADE.build(batch.store, tmp_path / "built")
    assert batch.meter.state(batch.claim()).messages == len(RECORDS)


def test_what_does_not_begin_where_the_one_before_ended_waits_for_who_joins(batch, tmp_path):
    with batch.puts.as_they_come(batch.work):
        batch.scan(batch.stretches[0])
        batch.await_put(FILE_SIZE)
        elsewhere = batch.stretches[1]
        record = next(each for each in RECORDS if each.physical_offset > elsewhere.from_offset)
        spilled = scan_stretch_task(
            ScanTask(
                Stretch(1, elsewhere.path, elsewhere.base, record.physical_offset, elsewhere.to_offset, True, False),
                RECIPE,
                str(batch.work),
            )
        )
        assert spilled.begin_offset == record.physical_offset
        batch.scan(batch.stretches[2])
        time.sleep(5 * follow_puts.LOOK_S)
        assert batch.follower.end_offset == FILE_SIZE
    batch.finish()
    batch.puts.end()
    assert made_files(batch.sidecar) == MADE.build(batch.store, tmp_path / "built")


def test_what_was_put_is_published_if_the_tasks_fail(batch):
    def fail() -> None:
        with batch.puts.as_they_come(batch.work):
            batch.scan(batch.stretches[0])
            batch.await_put(FILE_SIZE)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert batch.claim().indexed_to == FILE_SIZE
    assert batch.puts.begin() == FILE_SIZE


@pytest.mark.parametrize("started_ms", [T - 1, T + 10**9])
def test_how_late_it_was_is_told_of_what_came_since_the_start(batch, started_ms):
    batch.meter.started_ms = started_ms
    batch.finish()
    state = batch.meter.state(batch.claim())
    assert state.messages == len(RECORDS)
    assert (state.latency_s is not None) == (started_ms < T)


def test_much_is_published_before_its_batch_ends(batch, monkeypatch):
    monkeypatch.setattr(follow_puts, "PUBLISHED_SIZE", 2 * FILE_SIZE)
    with batch.puts.as_they_come(batch.work):
        for stretch in batch.stretches[:3]:
            batch.scan(stretch)
        batch.await_put(3 * FILE_SIZE)
        wait_for(lambda: batch.claim().indexed_to == 2 * FILE_SIZE)
    batch.finish()
    assert batch.claim().indexed_to == END


def test_a_spill_that_is_damaged_is_told_and_nothing_is_put(batch):
    batch.scan(batch.stretches[0])
    next(batch.work.glob("*.json")).write_text("{}")
    with pytest.raises(CorruptError), batch.puts.as_they_come(batch.work):
        time.sleep(5 * follow_puts.LOOK_S)
    assert not batch.claim().indexed


def test_nothing_is_written_any_more_when_somebody_else_may_write_there(batch):
    puts = Puts(batch.follower, CommitLog(batch.store / "commitlog"), batch.meter, lambda: False)
    with pytest.raises(StoreError, match="was removed or replaced while it was written to"):
        puts.begin()


def test_an_end_writes_nothing_to_what_has_become_another_s(batch):
    locked = [True]
    puts = Puts(batch.follower, CommitLog(batch.store / "commitlog"), batch.meter, lambda: locked[0])
    puts.begin()
    batch.puts = puts
    batch.finish()
    assert batch.claim().growing
    (batch.sidecar / NAME).write_text("another's")
    locked[0] = False
    with pytest.raises(StoreError, match="was removed or replaced"), puts.publishing():
        pass
    puts.end()
    assert (batch.sidecar / NAME).read_text() == "another's"


def test_files_with_half_a_spill_are_not_said_to_need_no_recovery(batch):
    batch.scan(batch.stretches[0])
    next(batch.work.glob("*.items")).write_bytes(b"")
    with pytest.raises(TruncatedError), batch.puts.as_they_come(batch.work):
        time.sleep(5 * follow_puts.LOOK_S)
    batch.puts.end()
    assert batch.claim().growing


def test_nothing_is_put_when_it_has_ended(batch):
    with batch.puts.as_they_come(batch.work):
        batch.scan(batch.stretches[0])
        batch.await_put(FILE_SIZE)
        batch.puts.end()
        batch.scan(batch.stretches[1])
        time.sleep(5 * follow_puts.LOOK_S)
    batch.finish()
    assert not batch.claim().indexed
    with pytest.raises(StoreError), batch.puts.publishing():
        pass


@pytest.mark.parametrize("left", [LAST_FILE_FROM + 1, len(RECORDS) - 1])
def test_a_log_that_was_cut_after_its_batch_was_planned_has_no_hole_there(batch, left, tmp_path):
    write_log(batch.store, RECORDS[:left], file_size=FILE_SIZE)
    end = RECORDS[left].physical_offset
    batch.finish()
    assert (batch.claim().indexed_to, len(batch.claim().indexed)) == (end, 1)
    assert batch.meter.state(batch.claim()).damaged == 0
    write_log(batch.store, RECORDS, file_size=FILE_SIZE)
    assert batch.puts.begin() == end
    batch.stretches = FollowPlan(CommitLog(batch.store / "commitlog"), batch.sidecar).stretches(Ticket(END), 2)
    batch.finish()
    batch.puts.end()
    assert made_files(batch.sidecar) == MADE.build(batch.store, tmp_path / "built")


def test_what_could_not_be_read_before_a_cut_is_damage_still(batch):
    damaged, left = LAST_FILE_FROM + 1, len(RECORDS) - 1
    assert damaged < left - 1
    write_log(batch.store, RECORDS[:left], file_size=FILE_SIZE)
    path, position = batch.log.path_of(RECORDS[damaged].physical_offset)
    with path.open("r+b") as file:
        file.seek(position + 4)
        file.write(bytes(4))  # its magic
    batch.finish()
    assert len(batch.claim().indexed) == 2
    assert batch.claim().indexed_to == RECORDS[left].physical_offset
    assert batch.meter.state(batch.claim()).damaged == 1


@pytest.mark.parametrize("position", [0, 1000])
def test_the_next_batch_goes_on_where_one_ended_with_what_cannot_be_read(batch, tmp_path, position):
    damaged = next(each.physical_offset for each in RECORDS if each.physical_offset >= FILE_SIZE + position)
    path, at = batch.log.path_of(damaged)
    path.write_bytes(path.read_bytes()[:at].ljust(FILE_SIZE, b"\xff"))
    plan = FollowPlan(CommitLog(batch.store / "commitlog"), batch.sidecar)
    ticket, number = plan.first(), 0
    while (behind := plan.latest(ticket, 2 * FILE_SIZE)) != ticket:
        batch.work = tmp_path / f"work{number}"
        batch.work.mkdir()
        batch.begin, batch.stretches = batch.puts.begin(), plan.stretches(behind, 2)
        assert batch.begin == batch.stretches[0].from_offset
        batch.finish()
        ticket, number = behind, number + 1
    batch.puts.end()
    assert number > 2
    assert made_files(batch.sidecar) == MADE.build(batch.store, tmp_path / "built")
    built = read_sidecar(tmp_path / "built")
    assert built is not None and batch.claim().indexed == built.indexed and len(built.indexed) == 2


def test_a_batch_of_nothing_lets_go_of_what_has_expired(batch):
    def held() -> list[str]:
        maps = Path("/proc/self/maps").read_text().splitlines()
        return [line for line in maps if str(batch.store) in line and line.endswith("(deleted)")]

    batch.finish()
    assert batch.puts.begin() == END
    for path in sorted((batch.store / "commitlog").iterdir())[:2]:
        path.unlink()
    batch.meter.state(batch.claim())  # which is told now and then
    assert held()
    assert batch.puts.begin() == END
    assert not held()
    assert min(int(path.name) for path in (batch.sidecar / "times").iterdir()) == 2 * FILE_SIZE
