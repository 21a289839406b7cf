"""A stream over a growing log: every message once, whatever happens between two looks."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from tests.reference import Record, encode_blank, encode_record
from tests.store_maker import FILE_SIZE, T, log_bytes, make_store, message, place
from whence.errors import UsageError
from whence.pipeline.stream_plan import NOWHERE, Limit, Place, StreamPlan
from whence.store.commit_log import CommitLog
from whence.store.log_scan import LogScan

MESSAGES = [
    message(keys=f"k{number}", tags="t", unique_id=f"id-{number}", at=10 * number, body=b"b" * (number * 37 % 700))
    for number in range(60)
]


def open_log(folder: Path) -> CommitLog:
    return CommitLog(folder / "commitlog")


def plan_of(folder: Path) -> StreamPlan:
    return StreamPlan(open_log(folder))


def read(folder: Path, plan: StreamPlan, start: Place, end: Place, size: int = 1 << 20) -> list[int]:
    """The messages of a batch, as tasks would read them: each opens the log itself."""
    log = open_log(folder)
    found: list[int] = []
    for begin, stretch_end in plan.cut(start, end, size):
        scan = LogScan(log, begin, stretch_end, tags=False)
        for batch in scan:
            found += batch.messages["physical_offset"].tolist()
        assert scan.end_offset <= stretch_end
    return found


def again(place: Place) -> Place:
    """A place as it comes out of a checkpoint."""
    return Place.from_json(json.loads(json.dumps(place.to_json())))


def stream(folder: Path, plan: StreamPlan, start: Place, limit: Limit = Limit(), **given) -> tuple[list[int], Place]:
    """All batches until nothing is left."""
    found: list[int] = []
    while (end := plan.latest(start, limit, **given)) != start:
        found += read(folder, plan, start, end)
        start = again(end)
    return found, start


class Broker:
    """Writes a log byte by byte, as RocketMQ does: files are made with their size, and a blank ends each."""

    def __init__(self, folder: Path, records: list[Record]) -> None:
        self.folder = folder / "commitlog"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._writes: list[tuple[int, bytes]] = []
        end = records[0].physical_offset
        for record in records:
            if record.physical_offset > end:
                self._writes.append((end, encode_blank(record.physical_offset - end)[:8]))
            self._writes.append((record.physical_offset, encode_record(record)))
            end = record.physical_offset + record.size

    def steps(self, random: Random):
        """Write piece by piece; the offset of each record that is whole by now, else None."""
        for offset, data in self._writes:
            path = self.folder / f"{offset - offset % FILE_SIZE:020d}"
            if not path.exists():
                path.write_bytes(bytes(FILE_SIZE))
            cuts = sorted({random.randrange(1, len(data)) for _ in range(3)} | {len(data)})
            for written in cuts:
                with path.open("r+b") as file:
                    file.seek(offset % FILE_SIZE)
                    file.write(data[:written])
                yield offset if written == len(data) and len(data) > 8 else None


@pytest.mark.parametrize("seed", range(4))
def test_a_growing_log_is_read_once_over_rolls_limits_and_restarts(tmp_path, seed):
    random = Random(seed)
    records = place(MESSAGES)
    (tmp_path / "commitlog").mkdir()
    plan = plan_of(tmp_path)
    start = plan.begin()
    assert start.offset == NOWHERE
    found: list[int] = []
    written: list[int] = []
    for whole in Broker(tmp_path, records).steps(random):
        written += [] if whole is None else [whole]
        if random.random() < 0.3:
            plan = plan_of(tmp_path)
        limit = random.choice([Limit(), Limit(), Limit(max_bytes=random.randrange(1, 3000)), Limit(max_files=1)])
        end = plan.latest(start, limit)
        if random.random() < 0.5:  # the batch is read only later, and then by another process
            plan = plan_of(tmp_path)
        found += read(tmp_path, plan, start, end, random.choice([1, 500, 1 << 20]))
        assert found == written[: len(found)]
        if limit == Limit():
            assert found == written
        start = again(end)
    found += stream(tmp_path, plan, start)[0]
    assert found == written == [record.physical_offset for record in records]


class TestALimit:
    def test_of_bytes_takes_whole_records_and_at_least_one(self, tmp_path):
        made = make_store(tmp_path, MESSAGES)
        sizes = {record.physical_offset: record.size for record in made.records}
        for max_bytes in (1, 500, 3000, 10_000, 1 << 30):
            plan = plan_of(tmp_path)
            start, found = plan.begin(), []
            while (end := plan.latest(start, Limit(max_bytes=max_bytes))) != start:
                batch = read(tmp_path, plan, start, end)
                assert len(batch) <= 1 or sum(map(sizes.__getitem__, batch)) <= max_bytes
                found += batch
                start = end
            assert found == made.offsets
            assert start.offset == made.end_offset

    def test_of_files_ends_where_a_file_does(self, tmp_path):
        make_store(tmp_path, MESSAGES)
        plan = plan_of(tmp_path)
        start = plan.begin()
        first = plan.latest(start, Limit(max_files=1))
        assert first.offset == FILE_SIZE and first.record > 0
        assert plan.latest(first, Limit(max_files=2)).offset == 3 * FILE_SIZE

    def test_never_goes_over_a_target_that_was_set_before(self, tmp_path):
        made = make_store(tmp_path, MESSAGES[:20])
        plan = plan_of(tmp_path)
        target = plan.end()
        for name, data in log_bytes(place(MESSAGES)).items():
            (tmp_path / "commitlog" / name).write_bytes(data)
        found, last = stream(tmp_path, plan, plan.begin(), Limit(max_bytes=2000), target=target)
        assert found == made.offsets
        assert last.offset == target.offset
        assert stream(tmp_path, plan, last)[0] == [r.physical_offset for r in place(MESSAGES)][20:]


class TestTheBegin:
    @pytest.fixture
    def made(self, tmp_path):
        return make_store(tmp_path, MESSAGES, base=2 * FILE_SIZE)

    def test_is_the_logs_or_its_end(self, made):
        plan = plan_of(made.folder)
        assert plan.begin() == Place(2 * FILE_SIZE)
        end = plan.end()
        assert (end.offset, end.record) == (made.end_offset, made.offsets[-1])
        assert plan.latest(end) == end

    def test_can_be_any_record(self, made):
        for number in (0, 1, 17, 40):
            plan = plan_of(made.folder)
            start = plan.at_offset(made.offsets[number])
            assert stream(made.folder, plan, start)[0] == made.offsets[number:]
        assert plan.at_offset(made.end_offset).offset == made.end_offset
        assert plan.at_offset(5) == plan.begin()

    def test_must_be_a_record(self, made):
        plan = plan_of(made.folder)
        with pytest.raises(UsageError, match=f"no record begins at offset {made.offsets[3] + 1}"):
            plan.at_offset(made.offsets[3] + 1)
        with pytest.raises(UsageError, match=f"behind the log's end, at {made.end_offset}"):
            plan.at_offset(made.end_offset + 1)

    def test_can_be_a_time(self, made):
        plan = plan_of(made.folder)
        for time, number in ((0, 0), (T, 0), (T + 1, 1), (T + 10, 1), (T + 333, 34), (T + 590, 59)):
            assert plan.at_time(time).offset == made.offsets[number]
        assert plan.at_time(T + 591) == plan.end()


class TestALogThatIsNotTheSame:
    @pytest.fixture
    def made(self, tmp_path):
        return make_store(tmp_path, MESSAGES)

    def test_expired_files_are_a_loss_if_they_were_not_read(self, made):
        plan = plan_of(made.folder)
        start = plan.latest(plan.begin(), Limit(max_bytes=1000))
        end = plan.latest(start, Limit(max_files=1))
        for path in made.log_files[:3]:
            path.unlink()
        loss = plan.loss(start)
        assert loss is not None and loss.begin_offset == 3 * FILE_SIZE
        assert loss.detail == (
            f"the log begins at offset {3 * FILE_SIZE} by now, and the stream is at {start.offset}: "
            f"{3 * FILE_SIZE - start.offset} bytes have expired before they were read"
        )
        assert plan.cut(start, end) == []
        found, last = stream(made.folder, plan, start)
        assert found == [offset for offset in made.offsets if offset >= 3 * FILE_SIZE]
        assert last.lost == again(last).lost == loss.lost
        assert last.to_json()["lost_bytes"] == loss.lost

    def test_expired_files_that_were_read_are_none(self, made):
        plan = plan_of(made.folder)
        start = plan.latest(plan.begin(), Limit(max_files=2))
        for path in made.log_files[:2]:
            path.unlink()
        assert plan.loss(start) is None
        assert stream(made.folder, plan, start)[0] == [o for o in made.offsets if o >= 2 * FILE_SIZE]

    def test_a_batch_that_expires_before_it_is_read_has_what_is_left(self, made):
        plan = plan_of(made.folder)
        start, end = plan.begin(), plan.latest(plan.begin(), Limit(max_files=3))
        made.log_files[0].unlink()
        left = [offset for offset in made.offsets if FILE_SIZE <= offset < 3 * FILE_SIZE]
        assert read(made.folder, plan, start, end) == left

    @pytest.mark.parametrize("is_live", [True, False])
    def test_a_cut_tail_is_a_loss(self, made, is_live):
        plan = plan_of(made.folder)
        end = plan.end()
        cut_at = made.offsets[-2] // FILE_SIZE * FILE_SIZE  # all of the last file, or of the last two
        for path in made.log_files[cut_at // FILE_SIZE :]:
            path.write_bytes(bytes(FILE_SIZE))
        plan = plan if is_live else plan_of(made.folder)
        loss = plan.loss(end)
        assert loss is not None and (loss.begin_offset, loss.lost) == (0, 0)
        assert loss.detail == (
            f"another record than before, or none, lies at offset {made.offsets[-1]}: the log was cut, or it is "
            "another one"
        )
        assert stream(made.folder, plan, end)[0] == [offset for offset in made.offsets if offset < cut_at]

    def test_another_log_is_a_loss_and_is_read_from_its_begin(self, made, tmp_path_factory):
        plan = plan_of(made.folder)
        places = [plan.end(), plan.latest(plan.begin(), Limit(max_bytes=1)), plan.at_offset(made.offsets[5])]
        other = make_store(tmp_path_factory.mktemp("other"), [message(keys="x", body=b"o" * 99)] * 80)
        plan = plan_of(other.folder)
        for start in places:
            assert plan.loss(start) is not None
            assert stream(other.folder, plan, start)[0] == other.offsets

    def test_a_log_whose_files_are_gone_for_the_moment_is_waited_for(self, made, tmp_path):
        plan = plan_of(made.folder)
        start = plan.latest(plan.begin(), Limit(max_bytes=1000))
        away = tmp_path / "away"
        (made.folder / "commitlog").rename(away)
        (made.folder / "commitlog").mkdir()
        assert plan.loss(start) is None
        assert plan.latest(start) == start
        (made.folder / "commitlog").rmdir()
        away.rename(made.folder / "commitlog")
        assert stream(made.folder, plan, start)[0] == [offset for offset in made.offsets if offset >= start.offset]


def test_damage_does_not_stop_a_stream_whose_log_goes_on(tmp_path):
    """A record that fails, in a file that was the last one when it was looked at last."""
    records = place(MESSAGES)
    files = log_bytes(records)
    names = sorted(files)
    made = make_store(tmp_path, MESSAGES[:4])
    plan = plan_of(tmp_path)
    start = plan.end()
    bad = records[6].physical_offset
    data = bytearray(files[names[0]])
    data[bad + 90] ^= 1
    (tmp_path / "commitlog" / names[0]).write_bytes(data)
    assert plan.latest(start).offset == bad
    for name in names[1:]:
        (tmp_path / "commitlog" / name).write_bytes(files[name])
    found, last = stream(tmp_path, plan, start)
    assert found == [r.physical_offset for r in records[len(made.records) :] if r.physical_offset != bad]
    assert last.offset == records[-1].physical_offset + records[-1].size == open_log(tmp_path).end_offset()


def test_a_gap_is_passed_over(tmp_path):
    made = make_store(tmp_path, MESSAGES)
    made.log_files[1].unlink()
    left = [offset for offset in made.offsets if not FILE_SIZE <= offset < 2 * FILE_SIZE]
    for limit in (Limit(), Limit(max_bytes=1), Limit(max_bytes=1500), Limit(max_files=1)):
        plan = plan_of(tmp_path)
        assert stream(tmp_path, plan, plan.begin(), limit)[0] == left


def test_stretches_begin_at_records_and_lie_in_one_file_each(tmp_path):
    made = make_store(tmp_path, MESSAGES)
    plan = plan_of(tmp_path)
    start, end = plan.latest(plan.begin(), Limit(max_bytes=1)), plan.end()
    whole = plan.cut(start, end)
    assert [begin for begin, _ in whole] == [start.offset, *range(FILE_SIZE, end.offset, FILE_SIZE)]
    for size in (1, 700, 1500, FILE_SIZE):
        stretches = plan.cut(start, end, size)
        assert {begin for begin, _ in stretches} <= {*made.offsets}
        assert all(first[1] == second[0] for first, second in pairwise(stretches))
        assert (stretches[0][0], stretches[-1][1]) == (start.offset, end.offset)
        assert all(begin // FILE_SIZE == (to - 1) // FILE_SIZE for begin, to in stretches)
        assert read(tmp_path, plan, start, end, size) == made.offsets[1:]
    assert len(plan.cut(start, end, 1)) == len(made.offsets) - 1


def test_a_part_of_the_log_is_cut_alike_whatever_lies_around_it(tmp_path):
    make_store(tmp_path, MESSAGES)
    plan = plan_of(tmp_path)
    whole = plan.cut(plan.begin(), plan.end(), 1000)
    for number in (1, 7, 20):
        start = plan.latest(plan.begin(), Limit(max_bytes=whole[number][0]))
        part = plan.cut(start, plan.end(), 1000)
        assert part[1:] == whole[len(whole) - len(part) + 1 :]


NO_PLACES = [{}, {"offset": "1", "record": 2, "head": ""}, {"offset": 1, "record": 2, "head": 7}, 5]


@pytest.mark.parametrize("document", NO_PLACES)
def test_a_place_that_is_none_is_refused(document):
    with pytest.raises(UsageError, match="is no place of a stream of whence's"):
        Place.from_json(document)
