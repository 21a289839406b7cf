"""The plan of following a log: how far a batch goes, where it begins, and when there is one at all."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.crash.following import Made, random_messages, write_log
from tests.disks import UnflushedDisk
from tests.store_maker import FILE_SIZE, place
from whence.files.names import sidecar_of
from whence.pipeline import plan as build_plan
from whence.pipeline.follow_plan import FIELDS_S, FollowPlan, Ticket
from whence.pipeline.plan import join_stretches
from whence.store.commit_log import CommitLog
from whence.store.field_claim import FieldClaim
from whence.store.index_file import Shape
from whence.store.message_store import Dialect
from whence.store.sidecar import read_sidecar
from whence.store.spill import Spilled

RECORDS = place(random_messages(Random(1), 120))
END = RECORDS[-1].physical_offset + RECORDS[-1].size
MADE = Made(Shape(7, 20), Dialect.V5_5)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_log(tmp_path / "store", RECORDS, file_size=FILE_SIZE)
    sidecar_of(tmp_path / "store").mkdir()
    return tmp_path / "store"


@pytest.fixture
def plan(store: Path) -> FollowPlan:
    return FollowPlan(CommitLog(store / "commitlog"), sidecar_of(store))


def follow(store: Path) -> None:
    MADE.follow(store, sidecar_of(store), Random(1))


def last_base() -> int:
    return END // FILE_SIZE * FILE_SIZE


def test_a_ticket_is_the_same_after_it_was_kept():
    assert Ticket.from_json(Ticket(7, 3).to_json()) == Ticket(7, 3)


def test_a_batch_takes_whole_files_as_far_as_it_may_and_then_what_the_last_one_has(plan, store):
    first = plan.first()
    assert first == Ticket(0)
    assert plan.latest(first) == plan.latest(first, last_base() + FILE_SIZE) == Ticket(END)
    assert plan.latest(first, last_base() + FILE_SIZE - 1) == Ticket(last_base())
    assert plan.latest(first, 2 * FILE_SIZE) == Ticket(2 * FILE_SIZE)
    assert plan.latest(first, 1) == Ticket(FILE_SIZE)  # one at least
    write_log(store, RECORDS[:3], file_size=FILE_SIZE)
    assert plan.latest(first, 1) == Ticket(RECORDS[3].physical_offset)


def test_a_batch_goes_no_further_than_its_target(plan):
    plan.target = RECORDS[3].physical_offset
    assert plan.latest(plan.first()) == Ticket(RECORDS[3].physical_offset)
    plan.target = 0
    assert plan.latest(plan.first()) == plan.first()


def test_nothing_is_to_do_when_all_is_indexed(plan, store):
    follow(store)
    ticket = Ticket(END)
    assert plan.first() == ticket
    assert plan.latest(ticket) == ticket
    assert plan.wait(ticket, None, 0.05) == ticket
    assert plan.stretches(ticket, 2) == []


def test_a_batch_begins_where_the_sidecar_says_whatever_spark_remembers(plan, store):
    write_log(store, RECORDS[:50], file_size=FILE_SIZE)
    follow(store)
    write_log(store, RECORDS, file_size=FILE_SIZE)
    assert plan.stretches(Ticket(END), 2)[0].from_offset == RECORDS[50].physical_offset
    for start in (Ticket(0), Ticket(last_base()), Ticket(END, 5), Ticket(10**9)):
        assert plan.latest(start).offset == END
        assert plan.latest(start) != start  # else Spark would see nothing new


def test_a_log_that_was_cut_makes_a_batch_that_scans_nothing(plan, store):
    follow(store)
    other = [replace(record, born_timestamp_ms=1) for record in RECORDS[40:]]
    write_log(store, [*RECORDS[:40], *other], file_size=FILE_SIZE)
    ticket = plan.latest(Ticket(END))
    assert ticket == Ticket(END, 1)
    assert plan.stretches(ticket, 2) == []
    follow(store)
    assert plan.latest(ticket) == ticket


def test_a_log_that_expired_before_it_was_read_makes_one_too(plan, store):
    write_log(store, RECORDS[:5], file_size=FILE_SIZE)
    follow(store)
    behind = [record for record in RECORDS if record.physical_offset >= 2 * FILE_SIZE]
    write_log(store, behind, file_size=FILE_SIZE)
    assert plan.latest(Ticket(7)) == Ticket(7, 1)


def test_what_expires_makes_a_batch_though_nothing_is_appended(plan, store):
    follow(store)
    ticket = Ticket(END)
    assert plan.wait(ticket, None, 0.05) == ticket
    for turn in (1, 2):
        write_log(store, [each for each in RECORDS if each.physical_offset >= turn * FILE_SIZE], file_size=FILE_SIZE)
        ticket = plan.latest(ticket)
        assert ticket == Ticket(END, turn)
        assert plan.stretches(ticket, 2) == []
        assert plan.wait(ticket, None, 0.05) == ticket


def test_a_log_without_files_is_waited_for(plan, store):
    follow(store)
    for path in (store / "commitlog").iterdir():
        path.unlink()
    assert plan.latest(Ticket(END)) == Ticket(END)
    write_log(store, RECORDS[:3], file_size=FILE_SIZE)
    for path in (store / "commitlog").iterdir():
        path.write_bytes(bytes(FILE_SIZE))
    assert plan.latest(Ticket(0)) != Ticket(0)  # what was indexed is not there


def test_a_log_whose_folder_is_gone_is_waited_for(plan, store):
    write_log(store, RECORDS[:50], file_size=FILE_SIZE)
    follow(store)
    (store / "commitlog").rename(store / "away")
    assert plan.latest(Ticket(END)) == Ticket(END)
    assert plan.stretches(Ticket(END), 2) == [] and plan.log_end() == 0
    assert plan.first() == Ticket(0)
    (store / "away").rename(store / "commitlog")
    write_log(store, RECORDS, file_size=FILE_SIZE)
    assert plan.latest(Ticket(0)) == Ticket(END)


def test_a_file_that_comes_into_the_log_late_makes_a_batch(plan, store):
    path = store / "commitlog" / f"{FILE_SIZE:020d}"
    data = path.read_bytes()
    path.unlink()
    follow(store)
    assert plan.latest(Ticket(END)) == Ticket(END)
    path.write_bytes(bytes(FILE_SIZE))
    assert plan.latest(Ticket(END)) == Ticket(END)  # there is nothing in it
    path.write_bytes(data)
    assert plan.latest(Ticket(END)) == Ticket(END, 1)
    assert plan.stretches(Ticket(END, 1), 2) == []
    follow(store)
    assert plan.latest(Ticket(END)) == Ticket(END)


def test_a_log_that_is_cut_below_its_target_is_done_with(store):
    plan = FollowPlan(CommitLog(store / "commitlog"), sidecar_of(store), END)
    write_log(store, RECORDS[:40], file_size=FILE_SIZE)
    follow(store)
    assert plan.latest(Ticket(0)) == Ticket(END)
    assert plan.latest(Ticket(END)) == Ticket(END)  # that batch came to the log's end
    write_log(store, RECORDS[:80], file_size=FILE_SIZE)
    assert plan.latest(Ticket(END)).offset == RECORDS[80].physical_offset
    write_log(store, RECORDS, file_size=FILE_SIZE)
    assert plan.latest(Ticket(END)) == Ticket(END, 1)


def test_a_record_in_the_making_is_waited_for(plan, store):
    follow(store)
    last = RECORDS[-1]
    path = store / "commitlog" / f"{last.physical_offset // FILE_SIZE * FILE_SIZE:020d}"
    data = path.read_bytes()
    write_log(store, RECORDS[:-1], file_size=FILE_SIZE)
    follow(store)
    ticket = Ticket(last.physical_offset)
    begin = last.physical_offset % FILE_SIZE
    for size in range(0, last.size, 7):
        path.write_bytes(data[: begin + size] + bytes(FILE_SIZE - begin - size))
        assert plan.latest(ticket) == ticket, size
    path.write_bytes(data)
    assert plan.latest(ticket) == Ticket(END)


@pytest.mark.parametrize("end", [RECORDS[1].physical_offset, RECORDS[70].physical_offset, last_base(), END])
@pytest.mark.parametrize("block_size", [128, 1024, 65_536])
def test_stretches_are_the_log_from_start_to_end(plan, monkeypatch, end, block_size):
    monkeypatch.setattr(build_plan, "BLOCK_SIZE", block_size)
    monkeypatch.setattr(build_plan, "STRETCH_SIZE_MIN", 1)
    stretches = plan.stretches(Ticket(end), 2)
    assert [stretch.number for stretch in stretches] == list(range(len(stretches)))
    assert not any(stretch.is_last for stretch in stretches)
    position = 0
    for stretch in stretches:
        assert stretch.from_offset == position
        position = stretch.to_offset
    assert position == end
    taken = join_stretches(stretches, {stretch.number: found(stretch, end) for stretch in stretches})
    assert not taken.again


def found(stretch, end: int) -> Spilled:
    """What a task would tell of a stretch."""
    offsets = [record.physical_offset for record in RECORDS if record.physical_offset < end]
    inside = [offset for offset in offsets if stretch.from_offset <= offset < stretch.to_offset]
    behind = [offset for offset in [*offsets, end] if offset >= stretch.to_offset]
    file_end = stretch.base + FILE_SIZE
    begin = inside[0] if inside else -1
    return Spilled(
        name="",
        begin_offset=stretch.from_offset if stretch.is_exact else begin,
        end_offset=min(behind[0], file_end),
        message_count=len(inside),
        item_count=0,
        last_offset=-1,
        last_head="",
        ends_bare=False,
        is_log_end=False,
        damage=(),
        holes=(),
        machine="",
    )


def test_a_claim_is_read_again_when_it_changes(plan, store):
    write_log(store, RECORDS[:9], file_size=FILE_SIZE)
    assert plan.indexed_to() == 0
    follow(store)
    claim = read_sidecar(sidecar_of(store))
    assert claim is not None
    assert plan.indexed_to() == claim.indexed_to == RECORDS[9].physical_offset


def test_a_field_that_is_behind_makes_a_batch_now_and_then_and_at_once_while_that_helps(plan, store, monkeypatch):
    follow(store)
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def put(indexed_to: int) -> None:
        """Index a field up to here."""
        claim = read_sidecar(sidecar_of(store))
        assert claim is not None
        field = FieldClaim("topic", "UTC", True, "4.0.0", 7, 20, indexed=((0, indexed_to),))
        replace(claim, fields={"topic": field}).write(sidecar_of(store), UnflushedDisk())

    def seconds_to_batch() -> int:
        return next(count for count in range(1000) if passes(count))

    def passes(count: int) -> bool:
        now[0] += 1.0 if count else 0.0
        return plan.latest(Ticket(END)) == Ticket(END, 1)

    put(END)
    assert plan.latest(Ticket(END)) == Ticket(END)
    put(100)
    assert [seconds_to_batch() for _ in range(3)] == [FIELDS_S, 2 * FIELDS_S, 4 * FIELDS_S]  # nothing comes of it
    for offset in (200, 300, 400):
        put(offset)
        assert seconds_to_batch() == 0
    assert seconds_to_batch() == FIELDS_S
    put(END)
    now[0] += 1000
    assert plan.latest(Ticket(END)) == Ticket(END)
    put(500)
    plan.target = END
    assert plan.latest(Ticket(END)) == Ticket(END)  # who ends when all is done builds them then
