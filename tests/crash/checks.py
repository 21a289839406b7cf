"""Checks: a store is held against its own log, as the twin in ``tests/reference.py`` reads it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from random import Random

from tests.crash.workload import BATCH_TOPIC, LOG_FOLDERS, Acknowledged, Sizes
from tests.disks import UnflushedDisk
from tests.lookup.judge import Judge, offsets
from tests.reference import PREPARED, ROLLBACK, TRANSACTION_BITS, Record, scan_log_file
from whence.door import Store
from whence.formats.rocketmq.index_file import decode_header
from whence.lookup.answer import Answer
from whence.store.commit_log import CommitLog
from whence.store.damage import DamageKind
from whence.store.dispatch import dispatch_log
from whence.store.message_store import Dialect

KEYS_ASKED = 80
"""So many keys are asked for at a time; all are where there are fewer."""
LEFT_BY_HALF = (DamageKind.HALF_RECORD, DamageKind.INDEX_NOT_USED)


def check_log(folder: Path, acknowledged: Iterable[Acknowledged]) -> list[Record]:
    """All that was acknowledged is in the log, whole, and no queue has a gap; gives the log.

    A writer may be killed in the middle of a write that crosses a page: such a last record is not in the log.
    """
    records = read_store(folder)
    if records and 0 in records[-1].properties_data:
        records.pop()
    by_offset = {record.physical_offset: record for record in records}
    for each in acknowledged:
        record = by_offset.get(each.physical_offset)
        assert record is not None, f"{each} is lost; the log has {len(records)} records up to {_end(records)}"
        assert each == Acknowledged.of(record), f"{each} became {record}"
    ends: dict[tuple[str, int], int] = {}
    for record in records:
        if record.sys_flag & TRANSACTION_BITS in (PREPARED, ROLLBACK):
            continue
        place = record.topic, record.queue
        first = record.queue_offset if place not in ends and records[0].physical_offset else 0
        assert record.queue_offset == ends.get(place, first), f"{record} comes after {ends.get(place)} in its queue"
        ends[place] = record.queue_offset + int(record.properties.get("INNER_NUM", 1))
    return records


def read_store(folder: Path) -> list[Record]:
    """All records of a store's log, up to the first bytes that are none, in whatever folders its files are."""
    paths = [path for log_folder in log_folders(folder) for path in log_folder.iterdir() if path.name.isdigit()]
    records: list[Record] = []
    for path in sorted(paths, key=lambda path: path.name):
        in_file, _, ending = scan_log_file(path.read_bytes())
        records += in_file
        if ending != "blank":
            break
    return records


def log_folders(folder: Path) -> list[Path]:
    """The folders of a store's log: one, or those of LOG_FOLDERS."""
    return [folder / name for name in ("commitlog", *LOG_FOLDERS) if (folder / name).is_dir()]


def check_answers(
    store: Store, records: Sequence[Record], random: Random, *, is_left: bool = False, keys_asked: int = KEYS_ASKED
) -> None:
    """Keys, ids, queue offsets and windows are answered as a look at every message answers them, completely.

    ``is_left``: the store is as a killed writer left it. What that was about to write may be there by half.
    """

    def check(answer: Answer, expected: Sequence[int]) -> None:
        receipt = answer.receipt
        assert offsets(answer) == list(expected), (answer.question, receipt)
        damage = [each for each in receipt.damage if not (is_left and each.kind in LEFT_BY_HALF)]
        assert receipt.complete and damage == [], (answer.question, receipt)

    judge = Judge(records)
    keys = sorted(judge.by_topic_and_key)
    for topic, key in random.sample(keys, min(len(keys), keys_asked)):
        check(store.find(key=key, topic=topic, limit=None), judge.by_topic_and_key[topic, key])
    for key in ("shared", "no-such-key"):
        check(store.find(key=key, limit=None), judge.by_key.get(key, []))
    for record in random.sample(records, min(len(records), 10)):
        here = [record.physical_offset]
        check(store.find(id=record.offset_id), here)
        if record.unique_id:  # the items of a client's batch may have none
            check(store.find(id=record.unique_id, topic=record.topic), [] if record.is_rollback else here)
        if record.sys_flag & TRANSACTION_BITS not in (PREPARED, ROLLBACK):
            place = {"topic": record.topic, "queue": record.queue, "queue_offset": record.queue_offset}
            check(store.find(**place), here)
    if records:
        for since_ms, until_ms in judge.windows(3, random.randrange(1000)):
            check(store.find(since=since_ms, until=until_ms, limit=None), judge.window(since_ms, until_ms))


def check_index_source(store: Store, records: Sequence[Record]) -> None:
    """The index is whence's and complete: nothing is scanned but records without items, and those beside them.

    The blank that ends a log file counts with the record before it.
    """
    receipt = store.find(key="shared", limit=None).receipt
    assert (receipt.complete, receipt.index_source) == (True, "whence"), receipt
    without = {number for number, record in enumerate(records) if record.is_rollback}
    beside = without | {number - 1 for number in without} | {number + 1 for number in without}
    begins = [*(record.physical_offset for record in records), receipt.searched_to_offset]
    scanned_max = sum(begins[number + 1] - begins[number] for number in beside if 0 <= number < len(records))
    assert receipt.scanned_bytes <= scanned_max, (scanned_max, receipt)


def check_derived(folder: Path, sizes: Sizes, scratch: Path, dialect: str = "5.5") -> None:
    """Index and queues are, byte for byte, what one dispatch of the log into empty folders makes of it."""
    log = CommitLog(*log_folders(folder))
    try:
        dispatch_log(
            log,
            scratch,
            slots=sizes.slots,
            items=sizes.items,
            queue_file_size=sizes.queue_file_size,
            dialect=Dialect(dialect),
            disk=UnflushedDisk(),
            is_batch=lambda topic: topic == BATCH_TOPIC,
        )
    finally:
        log.close()
    for kind in ("consumequeue", "batchconsumequeue"):
        queues, queues_anew = (_files(at / kind) for at in (folder, scratch))
        # Of a queue all of whose messages were lost, an empty file stays: its name keeps where the queue goes on.
        queues = {name: data for name, data in queues.items() if name in queues_anew or data.count(0) < len(data)}
        _check_same(queues, queues_anew)
    ours, anew = (_index_files(at / "index") for at in (folder, scratch))
    _check_same(dict(enumerate(ours)), dict(enumerate(anew)))
    shutil.rmtree(scratch, ignore_errors=True)


def _check_same(ours: dict[object, bytes], anew: dict[object, bytes]) -> None:
    assert ours.keys() == anew.keys(), f"{ours.keys() ^ anew.keys()} are not in both"
    for name, data in ours.items():
        if data != anew[name]:
            at = next(at for at, pair in enumerate(zip_longest(data, anew[name])) if pair[0] != pair[1])
            raise AssertionError(
                f"{name} differs from what the log gives, at byte {at} of {len(data)} and {len(anew[name])}: "
                f"{data[at : at + 20].hex()} and {anew[name][at : at + 20].hex()}"
            )


def _files(folder: Path) -> dict[object, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _index_files(folder: Path) -> list[bytes]:
    """Index files from the oldest to the newest. Their names are the clock's, but they ascend with the offsets."""
    paths = sorted(path for path in folder.iterdir() if path.name.isdigit()) if folder.is_dir() else []
    files = [path.read_bytes() for path in paths]
    headers = [decode_header(data) for data in files]
    places = [(header.begin_physical_offset, header.end_physical_offset) for header in headers]
    assert places == sorted(places), f"{[path.name for path in paths]} hold {places}"
    return files


def _end(records: Sequence[Record]) -> int:
    return records[-1].physical_offset + records[-1].size if records else 0
