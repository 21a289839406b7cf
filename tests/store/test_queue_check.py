"""QueueCheck: queues of RocketMQ are healthy, and no byte of our own can change without being told."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.disks import UnflushedDisk
from tests.golden import ALL
from tests.reference import (
    FILLER,
    PREPARED,
    ROLLBACK,
    TRANSACTION_BITS,
    Entry,
    Record,
    encode_properties,
    place_entries,
    queue_faults,
    tags_code,
)
from tests.store_maker import log_bytes, place
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY, BATCH_ENTRY_SIZE, ENTRY
from whence.store.commit_log import CommitLog
from whence.store.findings import LISTED_MAX, FindingKind
from whence.store.log_scan import LogScan
from whence.store.queue_builder import QueueBuilder
from whence.store.queue_check import QueueCheck, QueueFindings

FILE_SIZE = 100  # five entries
END = 2**40

Claim = tuple[Entry, int]  # an entry, and the queue offset of its message


def runs(claims: Sequence[Claim], size: int = 3) -> list[Any]:
    rows = [(entry.physical_offset, entry.size, entry.tags_code) for entry, _ in claims]
    offsets = [queue_offset for _, queue_offset in claims]
    return [
        (np.array(rows[at : at + size], ENTRY), np.array(offsets[at : at + size], np.int64))
        for at in range(0, len(rows), size)
    ]


def check_bytes(data: bytes, claims: Sequence[Claim], *, first: int = 0, size: int = 3, **told: Any) -> QueueFindings:
    """Check a queue with these bytes, in files of FILE_SIZE; its first entry has number ``first``."""
    with TemporaryDirectory() as store:
        folder = Path(store) / "consumequeue" / "T" / "0"
        folder.mkdir(parents=True)
        for at in range(0, len(data), FILE_SIZE):
            (folder / f"{20 * first + at:020d}").write_bytes(data[at : at + FILE_SIZE])
        told = {"begin_offset": 0, "end_offset": END} | told
        return QueueCheck(folder, FILE_SIZE, **told).run(runs(claims, size))


def kinds(found: QueueFindings) -> dict[str, int]:
    return {str(kind): count for kind, count in found.counts.items()}


def encoded(entries: Iterable[Entry], *, behind: int = 0) -> bytes:
    data = b"".join(entry.to_bytes() for entry in entries) + bytes(20 * behind)
    return data + bytes(-len(data) % FILE_SIZE)


# -- what RocketMQ wrote


@pytest.mark.parametrize("name", ALL)
def test_queues_of_a_broker_are_healthy(golden, name):
    """Also where it cut them: what it leaves there leads behind the log's end."""
    claims: dict[tuple[str, int], list[Claim]] = {}
    records = golden(name).records
    if name == "v5-damaged-half-record":
        records = records[:-1]  # its properties are zero: the log ends before it
    end_offset = records[-1].physical_offset + records[-1].size
    for record in records:
        if record.sys_flag & TRANSACTION_BITS not in (PREPARED, ROLLBACK):
            entry = Entry(record.physical_offset, record.size, tags_code(record))
            claims.setdefault((record.topic, record.queue), []).append((entry, record.queue_offset))
    ahead = 0
    queues = sorted((golden(name).store / "consumequeue").glob("*/*"))
    for folder in queues:
        expected = claims.pop((folder.parent.name, int(folder.name)), [])
        found = QueueCheck(folder, golden(name).queue_file_size, 0, end_offset).run(runs(expected, 50))
        assert found.listed == []
        assert found.is_healthy
        assert found.entry_count == len(expected)
        assert found.dropped_count == 0
        ahead += found.ahead_count
    assert not claims
    assert bool(ahead) is name.startswith("v5-damaged")


# -- every byte

ENTRIES = [Entry(100 * number + 700, 90, number - 4) for number in range(9)]


def claimed(entries: Iterable[Entry], first: int = 0) -> list[Claim]:
    return [(entry, number) for number, entry in enumerate(entries, first)]


def flipped(data: bytes, position: int, bits: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= bits
    return bytes(changed)


@pytest.mark.parametrize("is_exact", [True, False])
def test_no_byte_of_a_queue_can_change_unnoticed(is_exact):
    """But for a broker's bytes behind the end that lead behind the log's end, as those that it cut do."""
    data = encoded([FILLER] * 2 + ENTRIES)
    claims = claimed(ENTRIES, 2)
    assert check_bytes(data, claims, is_exact=is_exact).is_healthy
    for position in range(len(data)):
        for bits in (0x01, 0x40, 0x80, 0xFF):
            found = check_bytes(flipped(data, position, bits), claims, is_exact=is_exact)
            assert found.is_healthy is bool(found.ahead_count), (position, bits)
            assert not (is_exact and found.ahead_count)
            assert found.total <= 1


def test_expired_entries_lie_before_those_of_the_log():
    data = encoded(ENTRIES)
    rest = claimed(ENTRIES)[4:]
    for is_exact in (True, False):
        found = check_bytes(data, rest, begin_offset=1100, is_exact=is_exact)
        assert (found.is_healthy, found.expired_count, found.entry_count) == (True, 4, 5)
        assert kinds(check_bytes(data, rest, begin_offset=1000, is_exact=is_exact)) == {"dangling": 1}
    found = check_bytes(encoded([FILLER, FILLER, *ENTRIES[:7]], behind=3), [], begin_offset=10_000)
    assert (found.is_healthy, found.expired_count) == (True, 7)


def test_a_first_file_that_is_gone_is_missed_unless_its_messages_have_expired():
    data = encoded(ENTRIES[5:])
    assert check_bytes(data, claimed(ENTRIES)[5:], first=5, begin_offset=1200).is_healthy
    found = check_bytes(data, claimed(ENTRIES), first=5)
    assert kinds(found) == {"missing": 5}
    assert [finding.path.name for finding in found.listed] == [f"{0:020d}"] * 5
    assert [finding.position for finding in found.listed] == [0, 20, 40, 60, 80]


def test_a_queue_that_is_not_there_lacks_everything(tmp_path):
    found = QueueCheck(tmp_path / "no", FILE_SIZE, 0, END).run(runs(claimed(ENTRIES)))
    assert kinds(found) == {"missing": 9}
    assert "entry 0 should lead to the message at offset 700, but is not written" in found.listed[0].detail


def test_a_file_between_others_may_be_missing(tmp_path):
    data = encoded([*ENTRIES[:5], *[Entry(5000 + number, 1, 0) for number in range(8)]])
    claims = claimed([*ENTRIES[:5], *[Entry(5000 + number, 1, 0) for number in range(8)]])
    for at in (0, 200):
        (tmp_path / f"{at:020d}").write_bytes(data[at : at + FILE_SIZE])
    for is_exact in (True, False):
        found = QueueCheck(tmp_path, FILE_SIZE, 0, END, is_exact=is_exact).run(runs(claims))
        assert kinds(found) == {"missing": 5}


def test_messages_that_are_not_dispatched_yet_are_late():
    data = encoded(ENTRIES[:6])
    found = check_bytes(data, claimed(ENTRIES), is_open=True)
    assert (found.is_healthy, found.late_count, found.entry_count, found.listed) == (True, 3, 6, [])
    assert kinds(check_bytes(data, claimed(ENTRIES))) == {"missing": 3}
    hole = encoded([*ENTRIES[:4], Entry(0, 0, 0), ENTRIES[5]])
    assert kinds(check_bytes(hole, claimed(ENTRIES), is_open=True)) == {"missing": 1}


def test_late_messages_leave_those_listed_that_are_missing():
    entries = [Entry(10 * number, 9, 0) for number in range(400)]
    data = encoded([Entry(0, 0, 0)] * 150 + entries[150:200])
    found = check_bytes(data, claimed(entries), is_open=True)
    assert (kinds(found), found.late_count, len(found.listed)) == ({"missing": 150}, 200, LISTED_MAX)


def test_a_broker_that_lost_messages_goes_on_behind_its_last_entry():
    """As one that dispatches a log with a gap anew does. Its old queue has their entries, which lead nowhere now."""
    left = [*claimed(ENTRIES)[:3], *claimed(ENTRIES)[6:]]
    anew = encoded([*ENTRIES[:3], *ENTRIES[6:]])
    assert check_bytes(anew, left).is_healthy
    assert check_bytes(anew, left, is_exact=True).is_healthy
    assert kinds(check_bytes(encoded(ENTRIES), left)) == {"dangling": 3}


def test_a_message_whose_offset_is_taken_has_no_entry():
    claims = [*claimed(ENTRIES)[:5], (ENTRIES[5], 3), (ENTRIES[6], 5)]
    data = encoded([*ENTRIES[:5], ENTRIES[6]])
    for is_exact in (True, False):
        found = check_bytes(data, claims, is_exact=is_exact)
        assert (found.is_healthy, found.dropped_count, found.entry_count) == (True, 1, 6)


def test_delay_levels_may_be_configured(tmp_path):
    for topic, expected in (("SCHEDULE_TOPIC_XXXX", {}), ("T", {"wrong_entry": 9})):
        folder = tmp_path / topic / "2"
        folder.mkdir(parents=True)
        data = encoded([replace(entry, tags_code=5) for entry in ENTRIES])
        for at in range(0, len(data), FILE_SIZE):
            (folder / f"{at:020d}").write_bytes(data[at : at + FILE_SIZE])
        assert kinds(QueueCheck(folder, FILE_SIZE, 0, END).run(runs(claimed(ENTRIES)))) == expected


@pytest.mark.parametrize(
    ("name", "size", "counted"),
    [
        (f"{100:020d}", 99, {"wrong_size": 1}),
        (f"{100:020d}", 101, {"wrong_size": 1}),
        (f"{100:020d}", 60, {"wrong_size": 1, "missing": 1}),
        (f"{120:020d}", 100, {"wrong_size": 1, "missing": 4}),
        ("notes", 100, {"missing": 4}),
    ],
)
def test_files_have_their_size_and_name(tmp_path, name, size, counted):
    data = encoded(ENTRIES)
    (tmp_path / f"{0:020d}").write_bytes(data[:100])
    (tmp_path / name).write_bytes(data[100:].ljust(size, b"\0")[:size])
    assert kinds(QueueCheck(tmp_path, FILE_SIZE, 0, END).run(runs(claimed(ENTRIES)))) == counted


def test_findings_are_listed_up_to_a_limit():
    entries = [Entry(number, 1, 0) for number in range(300)]
    found = check_bytes(bytes(6000), claimed(entries))
    assert (len(found.listed), found.counts) == (LISTED_MAX, {FindingKind.MISSING: 300})


# -- the other kinds of queues


def built(folder: Path, records: list[Record], **options: Any) -> tuple[Path, int, Any]:
    """The queues that QueueBuilder makes of records; the end of their log, and what was scanned."""
    (folder / "commitlog").mkdir()
    for name, data in log_bytes(place(records)).items():
        (folder / "commitlog" / name).write_bytes(data)
    log = CommitLog(folder / "commitlog")
    builder = QueueBuilder(folder / "consumequeue", FILE_SIZE, UnflushedDisk(), **options)
    scan = LogScan(log, 0, tags=False)
    rows = []
    for batch in scan:
        builder.put(batch.data, batch.base_offset, batch.messages)
        rows.append(batch.messages.copy())
    builder.finish()
    log.close()
    return folder, scan.end_offset, np.concatenate(rows)


def test_ext_units_tell_the_codes(tmp_path):
    records = [Record(topic="T", properties_data=encode_properties({"TAGS": f"t{n}"})) for n in range(12)]
    folder, end, rows = built(tmp_path, records, ext_file_size=124)
    entries = np.zeros(len(rows), ENTRY)
    for name in ("physical_offset", "size", "tags_code"):
        entries[name] = rows[name]
    check = QueueCheck(folder / "consumequeue" / "T" / "0", FILE_SIZE, 0, end)
    assert check.run([(entries, rows["queue_offset"])]).is_healthy
    units = sorted((folder / "consumequeue_ext" / "T" / "0").iterdir())
    units[1].write_bytes(flipped(units[1].read_bytes(), 29, 1))
    assert kinds(check.run([(entries, rows["queue_offset"])])) == {"wrong_entry": 1}
    units[1].unlink()
    assert kinds(check.run([(entries, rows["queue_offset"])])) == {"wrong_entry": 6}


def test_a_batch_queue_has_an_entry_for_each_record(tmp_path):
    records = [Record(topic="B", store_timestamp_ms=n) for n in range(7)]
    size = 3 * BATCH_ENTRY_SIZE
    folder, end, rows = built(tmp_path, records, is_batch=lambda topic: True, batch_file_size=size)
    entries = np.zeros(len(rows), BATCH_ENTRY)
    for name in ("physical_offset", "size", "tags_code", "store_timestamp_ms"):
        entries[name] = rows[name]
    entries["base_offset"], entries["message_count"], entries["compacted_offset"] = rows["queue_offset"], 1, -1
    files = sorted((folder / "batchconsumequeue" / "B" / "0").iterdir())
    for is_exact in (True, False):
        check = QueueCheck(files[0].parent, size, 0, end, is_batch=True, is_exact=is_exact)
        assert check.run([(entries, rows["queue_offset"])]).is_healthy
        expired = replace(check, begin_offset=int(rows["physical_offset"][4]))
        assert expired.run([(entries[4:], rows["queue_offset"][4:])]).expired_count == 4
        whole = files[1].read_bytes()
        for position in range(len(whole)):
            files[1].write_bytes(flipped(whole, position, 0x81))
            found = check.run([(entries, rows["queue_offset"])])
            assert found.total == 1
        files[1].write_bytes(whole)


# -- against the twin


@st.composite
def queues(draw: st.DrawFn) -> tuple[bytes, int, list[Claim], int]:
    """A queue as it was built from a log that may have lost messages, with bytes changed; and what the log has."""
    offsets = sorted(draw(st.sets(st.integers(0, 60), max_size=12)))
    queue_offset = draw(st.integers(0, 8))
    claims = []
    for offset in offsets:
        queue_offset += draw(st.sampled_from([0, 1, 1, 1, 1, 3]))
        if draw(st.integers(0, 9)) == 0:
            queue_offset = 0
        claims.append((Entry(10 * offset + 5, 10, draw(st.integers(-1, 1))), queue_offset))
    placed = place_entries(claims)
    first = 5 * (min(placed, default=0) // 5)
    entries = [placed.get(number, FILLER) for number in range(first, max(placed, default=-1) + 1)]
    data = bytearray(encoded(entries, behind=draw(st.integers(0, 3))))
    expired = draw(st.integers(0, 4))
    begin_offset = claims[expired][0].physical_offset if expired < len(claims) else 0
    if begin_offset:
        kept = [claim for claim in claims if claim[0] in placed.values()]
        claims = [claim for claim in kept if claim[0].physical_offset >= begin_offset]
        if not all(placed[queue_offset] == entry for entry, queue_offset in claims if queue_offset in placed):
            begin_offset, claims = 0, kept
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(len(data) // 20 - 1, 0)))
        if data:
            changed = draw(st.sampled_from([Entry(0, 0, 0), FILLER, Entry(7, 3, 1), Entry(-1, 5, 0), Entry(5, 9, 0)]))
            data[20 * at : 20 * at + 20] = changed.to_bytes()
    return bytes(data), first, claims, begin_offset


@given(queues(), st.integers(1, 5))
def test_faults_are_those_of_the_twin(queue, size):
    data, first, claims, begin_offset = queue
    found = check_bytes(data, claims, first=first, size=size, begin_offset=begin_offset, is_exact=True)
    assert kinds(found) == +queue_faults(data, first, claims, begin_offset)


@given(st.binary(max_size=300), st.integers(0, 3), st.booleans(), st.integers(1, 5))
def test_any_bytes_are_checked_to_the_end(data, first, is_exact, size):
    data = data[: len(data) // 100 * 100]
    told = {"first": 5 * first, "is_exact": is_exact, "begin_offset": 800}
    once = check_bytes(data, claimed(ENTRIES, 3)[1:], size=size, **told)
    again = check_bytes(data, claimed(ENTRIES, 3)[1:], size=1, **told)
    assert not once.is_healthy
    assert once.counts == again.counts
