"""Messages without a key, an id or a tag have no items: they do not hide from an index what is in it."""

import json
import shutil
from pathlib import Path
from random import Random

import pytest

import whence
from tests.crash.following import Made, random_messages, write_log
from tests.disks import UnflushedDisk
from tests.lookup.judge import Judge, offsets
from tests.pipeline.source_rows import plan
from tests.pipeline.test_build import unflushed
from tests.pipeline.test_build_faults import try_build
from tests.reference import Record
from tests.store_maker import FILE_SIZE, message, place
from whence.files.names import sidecar_of
from whence.pipeline.source_plan import PartKind
from whence.store.index_file import Shape
from whence.store.log_scan import LogScan
from whence.store.sidecar import Sidecar, read_sidecar

__all__ = ["unflushed"]

MADE = Made(Shape(7, 9))
BARE = message()


def log_of(store: Path, messages: list[Record], *, begin: int = 0) -> list[Record]:
    placed = [record for record in place(messages) if record.physical_offset >= begin]
    write_log(store, placed, file_size=FILE_SIZE)
    return placed


def random_log(store: Path, seed: int, count: int = 100) -> list[Record]:
    """A log of several files; of every other one the first has expired."""
    return log_of(store, random_messages(Random(seed), count), begin=FILE_SIZE * (seed % 2))


def end_of(records: list[Record]) -> int:
    return records[-1].physical_offset + records[-1].size


def make(store: Path, how: str, seed: int = 0) -> None:
    if how == "in place":
        assert try_build(store, sidecar_of(store), root=store, shape=MADE.shape, queue_file_size=MADE.queue_file_size)
    elif how == "build":
        MADE.build_on(store, sidecar_of(store))
    else:
        MADE.follow(store, sidecar_of(store), Random(seed))


A, B = message(keys="a", at=1), message(keys="b", at=2)
LOGS = {
    "at the end": [A, B, BARE],
    "at the begin": [BARE, BARE, A, B],
    "in the middle": [A, BARE, BARE, B, BARE],
    "between two index files": [*[A] * 8, BARE, BARE, B, BARE],
    "behind a full index file": [*[A] * 7, B, BARE, BARE],
    "over the end of a log file": [A, B, *[message(body=bytes(900))] * 9],
    "alone": [BARE] * 3,
}


@pytest.mark.parametrize("how", ["build", "follow", "in place"])
@pytest.mark.parametrize("name", LOGS)
def test_what_is_indexed_is_found_without_a_scan_wherever_bare_messages_lie(tmp_path, name, how):
    placed = log_of(tmp_path / "store", LOGS[name])
    make(tmp_path / "store", how)
    by_key = Judge(placed).by_key
    with whence.open(tmp_path / "store") as store:
        for key in ("a", "b", "none"):
            answer = store.find(key=key, topic="T", limit=None, no_scan=True)
            receipt = answer.receipt
            assert offsets(answer) == by_key.get(key, [])
            assert (receipt.complete, receipt.scanned_bytes, receipt.index_source) == (True, 0, "whence")
            assert receipt.indexed_to_offset == end_of(placed)
            assert receipt.indexed_to_timestamp_ms == placed[-1].store_timestamp_ms
            assert store.find(key=key, topic="T", limit=None).receipt.scanned_bytes == 0


@pytest.mark.parametrize("how", ["build", "follow", "in place"])
@pytest.mark.parametrize("seed", range(4))
def test_every_answer_without_a_scan_is_that_of_a_plain_decode(tmp_path, seed, how):
    placed = random_log(tmp_path / "store", seed)
    make(tmp_path / "store", how, seed)
    judge = Judge(placed)
    with whence.open(tmp_path / "store") as store:
        for key, expected in judge.by_key.items():
            answer = store.find(key=key, limit=None, no_scan=True)
            assert offsets(answer) == expected
            assert (answer.receipt.complete, answer.receipt.scanned_bytes) == (True, 0)
            explained = store.explain(key=key, limit=None, no_scan=True)
            assert offsets(explained.answer) == expected
            assert not any(step.name == "not_scanned" for step in explained.steps)
        table = store.find_many([*judge.by_key, "none"], no_scan=True)
    receipt = json.loads(table.schema.metadata[b"whence.receipt"])
    assert (receipt["complete"], receipt["scanned_bytes"]) == (True, 0)
    found: dict[str, list[int]] = {}
    for row in table.to_pylist():
        found.setdefault(row["key"], []).append(row["physical_offset"])
    assert found == judge.by_key


def test_the_data_source_scans_nothing_of_what_is_indexed(tmp_path):
    from pyspark.sql import datasource as spark_filters

    random_log(tmp_path / "store", 0)
    make(tmp_path / "store", "build")
    wanted = [spark_filters.EqualTo(("topic",), "T"), spark_filters.EqualTo(("key",), "shared")]
    parts, _ = plan(tmp_path / "store", wanted, rows="key")
    assert [part.kind for part in parts] == [PartKind.INDEX]


@pytest.mark.parametrize("seed", range(3))
def test_a_reader_that_stays_open_misses_nothing_while_a_follower_puts(tmp_path, seed):
    store, random = tmp_path / "store", Random(seed)
    placed = random_log(store, seed, 60)
    judge = Judge(placed)
    follower, log = MADE.follower(store, sidecar_of(store), UnflushedDisk())
    assert follower.check()
    with whence.open(store) as reader:
        end = log.end_offset()
        while follower.end_offset < end:
            to = random.choice(
                [end, *(each.physical_offset for each in placed if each.physical_offset > follower.end_offset)]
            )
            for batch in LogScan(log, follower.end_offset, to, tags=True):
                follower.put(batch)
            for is_published in (False, True):
                if is_published:
                    follower.publish(to)
                claim = claim_of(store)
                for key in random.choices(list(judge.by_key), k=5):
                    expected = judge.by_key[key]
                    assert offsets(reader.find(key=key, limit=None)) == expected
                    told = offsets(reader.find(key=key, limit=None, no_scan=True))
                    assert {offset for offset in expected if offset < claim.indexed_to} <= {*told} <= {*expected}
    follower.close()
    log.close()


def claim_of(store: Path) -> Sidecar:
    claim = read_sidecar(sidecar_of(store))
    assert claim is not None
    return claim


def indexes(store: Path) -> list[Path]:
    return sorted((sidecar_of(store) / "index").iterdir())


def check_exact(store: Path, judge: Judge, asked: int = 20) -> None:
    """A scan makes up for what index files do not tell; without one, no answer is called complete that is not."""
    with whence.open(store) as reader:
        for key in Random(1).choices(sorted(judge.by_key), k=asked):
            assert offsets(reader.find(key=key, limit=None)) == judge.by_key[key]
            answer = reader.find(key=key, limit=None, no_scan=True)
            assert offsets(answer) == judge.by_key[key] or not answer.receipt.complete


def test_an_index_file_that_is_gone_may_have_had_what_its_neighbours_leave(tmp_path):
    placed = random_log(tmp_path / "store", 2)
    make(tmp_path / "store", "build")
    for path in indexes(tmp_path / "store"):
        data = path.read_bytes()
        path.unlink()
        check_exact(tmp_path / "store", Judge(placed))
        path.write_bytes(bytes(len(data)))
        check_exact(tmp_path / "store", Judge(placed))
        path.write_bytes(data)


def test_an_older_newest_file_proves_nothing_of_what_it_leaves(tmp_path):
    """As after a copy that took sidecar.json last."""
    store = tmp_path / "store"
    placed = random_log(store, 2)
    write_log(store, placed[:70], file_size=FILE_SIZE)
    make(store, "build")
    newest = indexes(store)[-1]
    older = newest.read_bytes()
    bare = next(number for number in range(71, 100) if not (placed[number].keys or placed[number].tags))
    write_log(store, placed[: bare + 1], file_size=FILE_SIZE)
    make(store, "build")
    assert newest.read_bytes() != older
    newest.write_bytes(older)
    check_exact(store, Judge(placed[: bare + 1]), asked=60)


def test_files_under_other_names_than_they_were_given_prove_nothing_of_what_they_leave(tmp_path):
    store = tmp_path / "store"
    placed = random_log(store, 2)
    make(store, "in place")
    first, second, third = sorted((store / "index").iterdir())[:3]
    third.rename(third.with_name("9" * 17))  # as if it were somebody else's
    check_exact(store, Judge(placed))
    for path, name in ((first, "1"), (second, first.name), (first.with_name("1"), second.name)):
        path.rename(path.with_name(name))
    check_exact(store, Judge(placed))


def test_what_a_log_got_where_it_lost_its_blank_is_not_taken_for_indexed(tmp_path):
    """A crash may take what follows the last record: the blank that filled its file, up to which all was indexed."""
    store = tmp_path / "store"
    placed = log_of(store, [A, BARE, message(keys="lost", body=bytes(3900))])
    assert placed[-1].physical_offset == FILE_SIZE
    write_log(store, placed, file_size=FILE_SIZE)
    path = store / "commitlog" / f"{FILE_SIZE:020d}"
    path.unlink()
    make(store, "build")
    assert claim_of(store).indexed == ((0, FILE_SIZE),)
    placed = log_of(store, [A, BARE, B])
    check_exact(store, Judge(placed))
    with whence.open(store) as reader:
        assert len(reader.find(key="b")) == 1


def test_a_store_of_whence_s_own_makes_its_index_itself(tmp_path):
    """Its sidecar has time blocks, says up to where, and knows of no index file."""
    with whence.create(tmp_path / "store", slots=7, items=9) as store:
        store.append("T", b"body", keys=["a"])
    sidecar = sidecar_of(tmp_path / "store")
    sidecar.mkdir()
    told = Sidecar(MADE.dialect, 7, 9, 200, in_place=True, indexed=((0, 10**6),))
    told.write(sidecar, UnflushedDisk())
    shutil.rmtree(tmp_path / "store" / "index")
    with whence.open(tmp_path / "store") as reader:
        assert len(reader.find(key="a")) == 1
