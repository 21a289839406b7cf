"""StretchKeys: the keys of a short stretch of log, scanned at the first question and kept from the second on."""

import pytest

from tests.reference import encode_record
from tests.store_maker import FILE_SIZE, make_store, message, place
from whence.store import stretch_keys
from whence.store.commit_log import CommitLog
from whence.store.damage import Damage
from whence.store.stretch_keys import StretchKeys

MESSAGES = [
    message(keys=f"k{number % 7} every", unique_id=f"id-{number}", sys_flag=0xC if number % 10 == 9 else 0)
    for number in range(100)
]


@pytest.fixture
def made(tmp_path):
    return make_store(tmp_path, MESSAGES, indexed=0)


def opened(made):
    log = CommitLog(made.folder / "commitlog")
    log.end_offset()
    return log, StretchKeys(log)


def wanted(made, keys, begin=0, end=2**62):
    """By looking at every message: keys and unique ids, of all but rollback records."""
    return [
        record.physical_offset
        for record in made.records
        if begin <= record.physical_offset < end
        and not record.is_rollback
        and {*record.keys, record.unique_id} & set(keys)
    ]


@pytest.mark.parametrize("keys", [("k3",), ("every",), ("id-4",), ("id-9",), ("k3", "k5", "id-4"), ("absent",)])
def test_every_question_has_the_same_answer_the_first_time_and_later(made, keys):
    log, kept = opened(made)
    damage: list[Damage] = []
    for begin, end in log.pieces(0, log.end_offset()):
        for _ in range(4):
            assert kept.candidates(begin, end, keys, damage) == wanted(made, keys, begin, end)
    assert damage == []


def test_a_stretch_that_grows_is_kept_up(tmp_path):
    made = make_store(tmp_path, MESSAGES[:5], indexed=0)
    log, kept = opened(made)
    placed = place(MESSAGES[:30])
    for count in range(5, 30):
        record = placed[count]
        with made.log_files[0].open("r+b") as writer:
            writer.seek(record.physical_offset)
            writer.write(encode_record(record))
        end = log.end_offset()
        assert end == record.physical_offset + record.size
        found = kept.candidates(0, end, ("every",), [])
        assert found == [each.physical_offset for each in placed[: count + 1] if not each.is_rollback]


def test_damage_is_told_each_time(made):
    data = bytearray(made.log_files[0].read_bytes())
    data[made.offsets[3] + 90] ^= 1
    made.log_files[0].write_bytes(data)
    _, kept = opened(made)
    for _ in range(4):
        damage: list[Damage] = []
        found = kept.candidates(0, FILE_SIZE, ("every",), damage)
        assert found == [offset for offset in wanted(made, ["every"], 0, FILE_SIZE) if offset != made.offsets[3]]
        assert [told.position for told in damage] == [made.offsets[3]]


@pytest.mark.parametrize("limit", ["STRETCH_SIZE_MAX", "KEPT_SIZE_MAX"])
def test_what_is_too_much_to_keep_is_scanned_each_time(made, monkeypatch, limit):
    monkeypatch.setattr(stretch_keys, limit, 100)
    log, kept = opened(made)
    for _ in range(3):
        for begin, end in log.pieces(0, log.end_offset()):
            assert kept.candidates(begin, end, ("k3",), []) == wanted(made, ["k3"], begin, end)


def test_more_stretches_than_are_kept_are_answered_as_well(made, monkeypatch):
    monkeypatch.setattr(stretch_keys, "STRETCHES_MAX", 3)
    _, kept = opened(made)
    for _ in range(3):
        for begin, end in zip(made.offsets[:30:3], made.offsets[3:33:3], strict=True):
            assert kept.candidates(begin, end, ("every",), []) == wanted(made, ["every"], begin, end)
