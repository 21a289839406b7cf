"""LogFile: the next whole record behind damage, found in bounded time."""

from dataclasses import replace

from tests.reference import encode_record, i32, i64
from tests.store_maker import log_bytes, message, place
from whence.files.mapped_file import MappedFile
from whence.store.log_file import NOTHING_FOUND, Found, LogFile, PlainBudget
from whence.store.scan import Reason

MESSAGES = [message(keys=f"key-{number}", at=number) for number in range(20)]
PLACED = place(MESSAGES)
STARTS = [record.physical_offset for record in PLACED]
DATA = log_bytes(PLACED)[f"{0:020d}"]
END = STARTS[-1] + PLACED[-1].size


def log_file(folder, data, base=0):
    (folder / "log").write_bytes(data)
    return LogFile(MappedFile(folder / "log"), base, PlainBudget())


def test_what_stands_at_a_position(tmp_path):
    file = log_file(tmp_path, DATA)
    assert file.what_is_at(STARTS[3]).reason is Reason.END
    assert file.what_is_at(STARTS[3] + 1).reason is Reason.DAMAGE
    assert file.what_is_at(END).reason is Reason.ZERO


def test_the_next_whole_record_is_the_next_one(tmp_path):
    file = log_file(tmp_path, DATA)
    for number in range(len(STARTS) - 1):
        for position in (STARTS[number] + 1, STARTS[number] + 50, STARTS[number + 1]):
            assert file.next_whole(position) == Found(STARTS[number + 1], None)
    assert file.next_whole(STARTS[-1] + 1) == NOTHING_FOUND


def test_records_of_another_place_are_passed_over(tmp_path):
    """They say themselves where they lie: bytes that were copied here are none of this log."""
    moved = encode_record(replace(PLACED[0], physical_offset=77))
    file = log_file(tmp_path, b"\xff" * 10 + moved + DATA[10 + len(moved) :])
    assert file.next_whole(0) == Found(STARTS[2], None)


def test_behind_a_record_that_fails_its_own_size_leads_on(tmp_path):
    damaged = bytearray(DATA)
    damaged[STARTS[4] + 90] ^= 1
    assert log_file(tmp_path, bytes(damaged)).resume(STARTS[4]) == Found(STARTS[5], None)


def test_a_wrong_size_does_not(tmp_path):
    damaged = bytearray(DATA)
    damaged[STARTS[4] : STARTS[4] + 4] = i32(33)
    assert log_file(tmp_path, bytes(damaged)).resume(STARTS[4]) == Found(STARTS[5], None)


def test_a_search_that_would_take_too_long_is_given_up(tmp_path):
    """Heads one behind the other, each of a long record that fails only at its end."""
    magic = bytes.fromhex("daa320a7")
    data = bytearray(65536)
    for at in range(0, 60_000, 48):
        head = i32(len(data) - at) + magic + bytes(20) + i64(at)
        data[at : at + len(head)] = head
    found = log_file(tmp_path, bytes(data)).next_whole(0)
    assert found.position is None
    assert found.given_up_at is not None
    assert found.given_up_at < 1000
    assert "given up" in str(found)
