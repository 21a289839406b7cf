"""Time blocks of a sidecar: which parts of a log are looked at for a window. They spare work and change no answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whence
from tests.disks import UnflushedDisk
from tests.reference import Record, time_blocks
from tests.store_maker import MadeStore, T, make_store, message
from whence.files.names import sidecar_of
from whence.formats.time_blocks import TIME_BLOCK
from whence.store.commit_log import CommitLog
from whence.store.message_store import Dialect
from whence.store.sidecar import Sidecar
from whence.store.time_blocks import TimeBlocks

FILE_SIZE = 200_000  # three blocks and a bit
BODY = bytes(13_000)


def timed_store(folder: Path, times: Sequence[int]) -> MadeStore:
    return make_store(folder / "store", [message(at=at, body=BODY) for at in times], file_size=FILE_SIZE)


def claim_of(made: MadeStore, *indexed: tuple[int, int]) -> Sidecar:
    last = made.offsets[-1]
    head = CommitLog(made.folder / "commitlog").raw(last, 48)
    return Sidecar(Dialect.V5_5, 7, 20, 200, indexed or ((0, made.end_offset),), last, head)


def write_times(folder: Path, records: Sequence[Record]) -> None:
    """As a build leaves them."""
    folder.mkdir(parents=True)
    for base in {record.physical_offset // FILE_SIZE * FILE_SIZE for record in records}:
        here = [
            (record.physical_offset - base, record.store_timestamp_ms)
            for record in records
            if base <= record.physical_offset < base + FILE_SIZE
        ]
        (folder / f"{base:020d}").write_bytes(np.array(time_blocks(here), TIME_BLOCK).tobytes())


def parts(made: MadeStore, folder: Path, claim: Sidecar, *window: int | None) -> list[tuple[int, int]]:
    return TimeBlocks(CommitLog(made.folder / "commitlog"), folder, claim).stretches(0, made.end_offset, *window)


@settings(max_examples=30)
@given(times=st.lists(st.integers(-5, 40), min_size=1, max_size=40), data=st.data())
def test_what_is_ruled_out_has_no_record_of_the_window(tmp_path_factory, times, data):
    folder = tmp_path_factory.mktemp("times")
    made = timed_store(folder, times)
    write_times(folder / "times", made.records)
    edges = data.draw(
        st.lists(st.sampled_from([0, *made.offsets, made.end_offset]), max_size=4, unique=True).map(sorted)
    )
    indexed = tuple(zip(edges[::2], edges[1::2], strict=False))
    claim = claim_of(made, *indexed)
    since, until = data.draw(st.tuples(st.integers(-6, 41), st.integers(-6, 41)).map(sorted))
    window = data.draw(st.sampled_from([(T + since, T + until), (T + since, None), (None, T + until)]))
    found = parts(made, folder / "times", claim, *window)
    inside = [
        r.physical_offset for r in made.records if any(begin <= r.physical_offset < end for begin, end in found)
    ]
    first, last = (-(2**63) if window[0] is None else window[0]), (2**63 if window[1] is None else window[1])
    for record in made.records:
        if first <= record.store_timestamp_ms <= last:
            assert record.physical_offset in inside
        if not any(begin <= record.physical_offset < end for begin, end in claim.indexed):
            assert record.physical_offset in inside  # nothing is known of it
    files = {*range(0, made.end_offset, FILE_SIZE)}
    assert all(begin in files or begin in made.offsets for begin, _ in found)
    assert all(begin < end <= begin // FILE_SIZE * FILE_SIZE + FILE_SIZE for begin, end in found)
    assert found == sorted(found)


def test_a_window_reads_its_blocks_and_no_others(tmp_path):
    made = timed_store(tmp_path, range(60))
    write_times(tmp_path / "times", made.records)
    found = parts(made, tmp_path / "times", claim_of(made), T + 30, T + 31)
    assert sum(end - begin for begin, end in found) <= 2 * 65536 + 2 * len(BODY)
    assert parts(made, tmp_path / "times", claim_of(made), T + 1000, None) == []


DAMAGE: dict[str, Any] = {
    "cut": lambda data: data[:-3],
    "empty": lambda data: b"",
    "out of order": lambda data: data[20:] + data[:20],
    "twice": lambda data: data + data[-20:],
    "before the file": lambda data: b"\xff" + data[1:],
    "largest below smallest": lambda data: data[:12] + b"\x80" + data[13:],
    "too many": lambda data: data * 100,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_blocks_that_can_be_none_rule_nothing_out(tmp_path, name):
    made = timed_store(tmp_path, range(30))
    write_times(tmp_path / "times", made.records)
    path = min((tmp_path / "times").iterdir())
    path.write_bytes(DAMAGE[name](path.read_bytes()))
    assert (0, FILE_SIZE) in parts(made, tmp_path / "times", claim_of(made), T + 1000, None)
    path.unlink()
    assert (0, FILE_SIZE) in parts(made, tmp_path / "times", claim_of(made), T + 1000, None)


def test_blocks_of_another_log_rule_nothing_out(tmp_path):
    made = timed_store(tmp_path, range(30))
    write_times(tmp_path / "times", made.records)
    claim = claim_of(made)
    whole = CommitLog(made.folder / "commitlog").pieces(0, made.end_offset)
    other = Sidecar(Dialect.V5_5, 7, 20, 200, claim.indexed, claim.last_record_offset, b"\0" * 48)
    assert parts(made, tmp_path / "times", other, T + 1000, None) == whole


def test_a_window_is_answered_alike_with_blocks_and_without(tmp_path):
    random = Random(7)
    made = timed_store(tmp_path, [random.randrange(50) for _ in range(60)])
    sidecar = sidecar_of(made.folder)
    write_times(sidecar / "times", made.records)
    claim_of(made).write(sidecar, UnflushedDisk())
    with whence.open(made.folder) as store:
        for since in range(0, 52, 3):
            asked: dict[str, Any] = {"since": T + since, "until": T + since + 2, "limit": None}
            wanted = [
                record.physical_offset
                for record in reversed(made.records)
                if T + since <= record.store_timestamp_ms <= T + since + 2
            ]
            answer, scanned = store.find(**asked), store.find(**asked, scan=True)
            assert [found.physical_offset for found in answer] == wanted == [m.physical_offset for m in scanned]
            assert answer.receipt.complete and answer.receipt.searched_from_offset == 0
            assert answer.receipt.searched_to_offset == made.end_offset == scanned.receipt.scanned_bytes
            pages = store.find(**asked | {"limit": 1, "oldest_first": True})
            assert [found.physical_offset for found in pages] == wanted[::-1][:1]
        late = store.find(since=T + 100)
        assert (
            late.receipt.scanned_bytes == 0 and late.receipt.why_empty == "outside_window" and late.receipt.complete
        )


def test_places_where_records_begin_are_those_of_blocks_that_are_believed(tmp_path):
    made = timed_store(tmp_path, range(60))
    write_times(tmp_path / "times", made.records)
    log = CommitLog(made.folder / "commitlog")
    blocks = TimeBlocks(log, tmp_path / "times", claim_of(made))
    second = FILE_SIZE
    begins = blocks.begins(second, 2 * second)
    assert begins[0] == second and len(begins) == 3, "one for each block of the file"
    assert set(begins) <= set(made.offsets)
    assert blocks.begins(begins[1], begins[2]) == begins[1:2]
    part = TimeBlocks(log, tmp_path / "times", claim_of(made, (0, second), (begins[1], begins[2])))
    assert part.begins(second, 2 * second) == [begins[1]]
    assert TimeBlocks(log, tmp_path / "nosuch", claim_of(made)).begins(0, second) == []
    assert blocks.begins(1 << 40, 1 << 41) == []
    log.close()
