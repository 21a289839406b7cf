"""Records made many at once: the kernels beside plain Python."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import Record, crc_property, encode_record
from tests.strategies import BODIES, I32, KEYS, PROPERTY_TEXTS
from whence.formats.rocketmq.message import HEADS
from whence.kernels.intrinsics import LANES
from whence.kernels.records import ROW, Shared, measure_texts, size_records, write_records


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data or b"\0", np.uint8)[: len(data)]


def measured(texts: list[str], counts: list[int] | None = None) -> tuple[bool, list[int]]:
    text = "".join(f"{text}\x02" for text in texts).encode() + bytes(LANES)
    sizes = np.empty(len(texts), np.int64)
    is_good = measure_texts(array(text), np.array(counts or [], np.int64), sizes)
    return is_good, sizes.tolist()


@given(st.lists(PROPERTY_TEXTS | st.just("") | st.just("x" * 200), max_size=20))
def test_texts_are_cut_at_their_ends(texts):
    assert measured(texts) == (True, [len(text.encode()) for text in texts])


@given(st.lists(st.lists(KEYS | st.just("k" * 70), max_size=4), min_size=1, max_size=20))
def test_keys_are_words_with_single_spaces_between_them(keys):
    texts = [" ".join(some) for some in keys]
    assert measured(texts, [len(some) for some in keys]) == (True, [len(text.encode()) for text in texts])


@given(
    st.lists(st.lists(st.text("ab \x02", max_size=3), max_size=4), min_size=1, max_size=5),
    st.integers(0, 130),
)
def test_keys_that_are_none_are_noticed(keys, before):
    """``before`` moves what follows over the ends of the blocks that are looked at at once."""
    keys = [["x" * (before + 1)], *keys]
    is_good, _ = measured([" ".join(some) for some in keys], [len(some) for some in keys])
    assert is_good == all(key and not {" ", "\x02"} & set(key) for some in keys for key in some)


def test_a_02_in_the_last_text_is_noticed():
    assert measured(["a", "b\x02"]) == (False, [1, 1])
    assert measured(["a\x02", "b"]) == (False, [1, 0])


@st.composite
def messages(draw: st.DrawFn) -> tuple[Record, dict[str, str], bool]:
    """A record without properties; its keys, tags and others; and whether it is given an id."""
    record = Record(stored_body=draw(BODIES), flag=draw(I32))
    texts = st.fixed_dictionaries({}, optional={"KEYS": KEYS, "TAGS": PROPERTY_TEXTS, "a": PROPERTY_TEXTS})
    return record, draw(texts), draw(st.booleans())


@given(
    some=st.lists(messages(), min_size=1, max_size=12),
    cut=st.integers(0, 12),
    common=st.sampled_from([b"", b"all\x01alike\x02"]),
    id_number=st.integers(0, 2**48 - 100),
    record_crc=st.booleans(),
    host=st.sampled_from([("10.0.0.7", 10911), ("2001:db8::1", 1)]),
)
def test_records_are_those_of_the_twin(some, cut, common, id_number, record_crc, host):
    is_ipv6 = ":" in host[0]
    like = Record(
        topic="T" * 150,
        version=2,
        queue=3,
        sys_flag=0x30 * is_ipv6,
        born_timestamp_ms=5,
        store_timestamp_ms=7,
        born_host=host,
        store_host=host,
        reconsume_times=9,
    )
    rows = np.zeros(len(some), ROW)
    columns: list[bytes] = [b"", b"", b"", b""]
    expected = b""
    next_id = id_number
    for number, (record, texts, makes_id) in enumerate(some):
        given_data = f"a\x01{texts['a']}\x02".encode() if "a" in texts else b""
        keys, tags = (texts.get(name, "").encode() for name in ("KEYS", "TAGS"))
        rows[number]["body_size"], rows[number]["given_size"] = len(record.stored_body), len(given_data)
        rows[number]["keys_size"], rows[number]["tags_size"] = len(keys), len(tags)
        rows[number]["flag"], rows[number]["makes_id"] = record.flag, makes_id
        parts = (record.stored_body, keys + b"\x02", tags + b"\x02", given_data)
        columns = [column + part for column, part in zip(columns, parts, strict=True)]
        properties = f"UNIQ_KEY\x01HEAD{next_id:012X}\x02".encode() if makes_id else b""
        next_id += makes_id
        properties += b"".join(f"{name}\x01{texts[name]}\x02".encode() for name in ("KEYS", "TAGS") if name in texts)
        placed = replace(
            like,
            stored_body=record.stored_body,
            flag=record.flag,
            queue_offset=1000 + number,
            physical_offset=2**40 + len(expected),
            properties_data=properties + common + given_data + bytes(20 * record_crc),
        )
        encoded = encode_record(placed)
        expected += encoded[:-20] + crc_property(encoded[:-20]) if record_crc else encoded

    layout = HEADS[0x30 * is_ipv6]
    like_data = encode_record(like)
    head, topic = like_data[: layout.size], like_data[layout.size : layout.size + 152]
    id_size = len("UNIQ_KEY.HEAD") + 12 + 1
    bodies_size = size_records(rows, len(common) + 20 * record_crc, id_size, len(head) + len(topic) + 2)
    assert bodies_size == len(columns[0])
    assert rows["record_size"].sum() == len(expected)
    out = np.empty(len(expected), np.uint8)
    shared = Shared(array(head), array(topic), array(b"UNIQ_KEY\x01HEAD"), array(common))
    arrays = tuple(array(column) for column in columns)
    positions = np.zeros(4, np.int64)
    begin = 0
    for part in (slice(0, cut), slice(cut, len(some))):
        size = int(rows[part]["record_size"].sum())
        queue_offset, offset = 1000 + min(part.start, len(some)), 2**40 + begin
        id_number = write_records(
            rows[part],
            shared,
            arrays,
            positions,
            id_number,
            queue_offset,
            offset,
            record_crc,
            out[begin : begin + size],
        )
        begin += size
    assert id_number == next_id
    assert positions.tolist() == [len(column) for column in columns]
    assert out.tobytes() == expected
