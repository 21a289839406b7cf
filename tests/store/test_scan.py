"""Two roads over a stretch of log: plain Python and the kernel take the same records and stop at the same byte."""

import tarfile
from array import array
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.golden import FOLDER
from tests.reference import decode_record, encode_blank, i32, scan_log_file
from tests.store_maker import FILE_SIZE, T, log_bytes, message, place
from tests.strategies import log_files, property_blobs
from whence.store.scan import Reason, Sieve, scan_bulk, scan_plain

SETS = ("v4-clean", "v5-clean", "v5-direct", "v5-direct-crc")


def plain(data, base, position, end, sieve):
    offsets = []

    def take(stored):
        if sieve.takes(stored):
            offsets.append(stored.physical_offset)

    return scan_plain(memoryview(data), base, position, end, take), offsets


def bulk(data, base, position, end, sieve):
    offsets = array("q")
    return scan_bulk(memoryview(data), base, position, end, sieve, offsets), offsets.tolist()


def both(data, base=0, position=0, end=None, sieve=None):
    """Where a scan stopped and what it took; the two roads must agree."""
    end = len(data) if end is None else end
    by_plain = plain(data, base, position, end, sieve or Sieve())
    by_kernel = bulk(data, base, position, end, sieve or Sieve())
    assert by_kernel == by_plain
    return by_plain


@cache
def golden_files(name):
    """``[(base, bytes, record positions)]`` of a set's log."""
    files = []
    with tarfile.open(FOLDER / name / "store.tar.gz") as archive:
        for member in sorted(archive.getnames()):
            if "/commitlog/" in member:
                taken = archive.extractfile(member)
                assert taken is not None
                data = taken.read()
                records, _, _ = scan_log_file(data)
                base = int(member.rsplit("/", 1)[1])
                files.append((base, data, [record.physical_offset - base for record in records]))
    return files


MESSAGES = [message(keys=f"key-{number}", at=number) for number in range(10)]
DATA = log_bytes(place(MESSAGES))[f"{0:020d}"]
STARTS = [record.physical_offset for record in place(MESSAGES)]
END = STARTS[-1] + place(MESSAGES)[-1].size


class TestWhereAScanStops:
    def test_at_the_end_of_the_stretch(self):
        stopped, offsets = both(DATA, end=END)
        assert (stopped.position, stopped.last, stopped.reason) == (END, STARTS[-1], Reason.END)
        assert offsets == STARTS

    def test_behind_the_record_that_begins_in_the_stretch(self):
        for end in range(STARTS[4] + 1, STARTS[5] + 1):
            stopped, offsets = both(DATA, end=end)
            assert (stopped.position, stopped.reason, offsets) == (STARTS[5], Reason.END, STARTS[:5]), end

    def test_where_nothing_is_written(self):
        stopped, offsets = both(DATA)
        assert (stopped.position, stopped.last, stopped.reason) == (END, STARTS[-1], Reason.ZERO)
        assert offsets == STARTS

    def test_behind_a_blank(self):
        stopped, _ = both(DATA[:END] + encode_blank(FILE_SIZE - END))
        assert (stopped.position, stopped.reason) == (FILE_SIZE, Reason.BLANK)

    @pytest.mark.parametrize("size", [0, 7, -1, 8, FILE_SIZE - END - 1, FILE_SIZE - END + 1, 2**31 - 1])
    def test_before_a_blank_whose_size_cannot_be(self, size):
        data = DATA[:END] + i32(size) + bytes.fromhex("cbd43194") + bytes(FILE_SIZE - END - 8)
        stopped, _ = both(data)
        assert (stopped.position, stopped.reason) == (END, Reason.DAMAGE)

    @pytest.mark.parametrize("left", range(9))
    def test_where_fewer_bytes_than_a_record_s_start_are_left(self, left):
        stopped, offsets = both(DATA[: END + left])
        assert stopped.position == END
        assert stopped.reason is (Reason.ZERO if left else Reason.END)
        assert offsets == STARTS

    @pytest.mark.parametrize(
        ("at", "data"),
        [
            (0, i32(90)),  # size
            (0, i32(-1)),
            (0, i32(2**31 - 1)),
            (4, b"\0\0\0\0"),  # magic
            (8, b"\x12"),  # body's checksum
            (28, b"\x01"),  # physical offset
            (36, b"\0\0\0\x30"),  # hosts of 20 bytes
            (84, i32(-1)),  # body size
            (84, i32(5000)),
            (92, b"\x80"),  # topic size
            (94, b"\x7f\xff"),  # properties size
        ],
    )
    def test_before_a_record_that_is_not_whole(self, at, data):
        damaged = bytearray(DATA)
        damaged[STARTS[3] + at : STARTS[3] + at + len(data)] = data
        stopped, offsets = both(bytes(damaged))
        assert (stopped.position, stopped.last, stopped.reason) == (STARTS[3], STARTS[2], Reason.DAMAGE)
        assert stopped.detail
        assert offsets == STARTS[:3]

    def test_at_its_start_if_the_stretch_is_empty(self):
        stopped, offsets = both(DATA, position=STARTS[2], end=STARTS[2])
        assert (stopped.position, stopped.last, stopped.reason, offsets) == (STARTS[2], -1, Reason.END, [])


@pytest.mark.parametrize("name", SETS)
def test_golden_logs_are_scanned_alike(name):
    for base, data, positions in golden_files(name):
        _, offsets = both(data, base)
        assert offsets == [base + position for position in positions]


@st.composite
def stretches(draw):
    """A stretch of a golden log that begins where a record does, and edits: ``(position, bytes)``, None to cut."""
    number = draw(st.integers(0, 3))
    _, data, positions = golden_files(SETS[number])[number]
    start = draw(st.sampled_from(positions[-40:] if draw(st.booleans()) else positions))
    edits: list[tuple[int, bytes | None]] = []
    for _ in range(draw(st.integers(0, 3))):
        target = min(start + draw(st.integers(0, 4000)), len(data) - 1)
        kind = draw(st.sampled_from(["flip", "zeros", "field", "cut"]))
        if kind == "flip":
            edits.append((target, bytes([data[target] ^ 1 << draw(st.integers(0, 7))])))
        elif kind == "zeros":
            edits.append((target, bytes(draw(st.integers(1, 600)))))
        elif kind == "cut":
            edits.append((target, None))
        else:
            record = max((position for position in positions if position <= target), default=0)
            at = record + draw(st.sampled_from([0, 4, 8, 12, 28, 32, 36, 84]))
            value = draw(st.sampled_from([0, 1, -1, 90, 91, 2**31 - 1, -(2**31)]) | st.integers(-1000, 100_000))
            edits.append((at, i32(value)))
    end = draw(st.none() | st.integers(start, start + 6000))
    return number, start, end, edits


@pytest.mark.slow
@settings(max_examples=300)
@given(stretches())
def test_mutated_golden_logs_are_scanned_alike(stretch):
    number, start, end, edits = stretch
    base, original, _ = golden_files(SETS[number])[number]
    data = bytearray(original)
    for position, edit in edits:
        if edit is None:
            data = data[:position]
        elif position < len(data):
            data[position : position + len(edit)] = edit[: len(data) - position]
    end = len(data) if end is None else min(end, len(data))
    both(bytes(data), base, min(start, end), end)


@pytest.mark.slow
@settings(max_examples=150)
@given(log_files(blobs=property_blobs()))
def test_logs_of_any_properties_are_scanned_alike(made):
    data, base, records = made
    _, offsets = both(data, base)
    assert offsets == [record.physical_offset for record in records]


SIEVES = st.builds(
    Sieve,
    keys=st.lists(st.sampled_from(["hot-key", "Aa", "BB", "rep", "UaAahTbH", "订单-1", "absent"]), max_size=2).map(
        tuple
    ),
    topic=st.none() | st.sampled_from(["TopicTest", "Order-Events_2", "absent"]),
    queue=st.none() | st.integers(0, 3),
    queue_offset=st.none() | st.integers(0, 40),
)


@settings(max_examples=60)
@given(sieve=SIEVES, name=st.sampled_from(SETS), number=st.integers(0, 3))
@example(sieve=Sieve(keys=("订单-1", "hot-key")), name="v5-clean", number=0)
def test_a_sieve_of_the_kernel_lets_through_all_that_the_plain_one_does(sieve, name, number):
    """It compares hashes, so it may let more through: the message, read again, decides."""
    base, data, _ = golden_files(name)[number]
    stopped, offsets = plain(data, base, 0, len(data), sieve)
    stopped_bulk, offsets_bulk = bulk(data, base, 0, len(data), sieve)
    assert stopped_bulk == stopped
    assert set(offsets) <= set(offsets_bulk)
    assert offsets_bulk == sorted(offsets_bulk)
    if not sieve.keys:
        assert offsets == offsets_bulk


@pytest.mark.parametrize("name", SETS)
def test_every_key_and_id_passes_its_own_sieve_on_both_roads(name):
    base, data, positions = golden_files(name)[1]
    for position in positions[::5]:
        record = decode_record(data, position)
        texts = [*record.keys, *([record.unique_id] if record.unique_id and not record.is_rollback else [])]
        for text in texts:
            sieve = Sieve(keys=(text,))
            for offsets in (plain(data, base, 0, len(data), sieve)[1], bulk(data, base, 0, len(data), sieve)[1]):
                assert record.physical_offset in offsets


def test_windows_include_both_ends():
    sieve = Sieve(since_ms=T + 3, until_ms=T + 5)
    assert both(DATA, end=END, sieve=sieve)[1] == STARTS[3:6]


def test_a_rollback_record_bears_no_key_on_either_road():
    data = log_bytes(place([message(keys="k", unique_id="u", sys_flag=0xC), message(keys="k")]))[f"{0:020d}"]
    [second] = place([message(keys="k", unique_id="u", sys_flag=0xC), message(keys="k")])[1:]
    for sieve in (Sieve(keys=("k",)), Sieve(keys=("u", "k"))):
        assert both(data, sieve=sieve)[1] == [second.physical_offset]
