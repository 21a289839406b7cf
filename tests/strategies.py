"""Hypothesis strategies: texts, properties, hosts, records and whole CommitLog files.

Records are those of ``tests/reference.py``, so that a log is made by the twin's encoder and never by the code
under test. Values lean towards the corners of the format: empty, longest, negative, many bytes per character.
"""

from dataclasses import replace

from hypothesis import strategies as st

from tests.reference import (
    BORN_HOST_IS_IPV6,
    COMMIT,
    PREPARED,
    ROLLBACK,
    STORE_HOST_IS_IPV6,
    Record,
    encode_log_file,
    encode_properties,
)

I16 = st.integers(-(2**15), 2**15 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)

# What Java's strings may hold: any UTF-16 units, lone surrogates too.
JAVA_TEXTS = st.text(st.characters())
# What UTF-8 may hold: no lone surrogates. Two, three and four bytes a character come up as often as one.
UTF8_TEXTS = st.text(
    st.one_of(
        st.characters(max_codepoint=0x7F),
        st.characters(min_codepoint=0x80, max_codepoint=0x7FF),
        st.characters(min_codepoint=0x800, max_codepoint=0xFFFF, exclude_categories=["Cs"]),
        st.characters(min_codepoint=0x10000),
    )
)
# Texts that RocketMQ gives the same hash after "T#" or "TopicTest#", among them the one that folds to 0.
COLLIDING_KEYS = st.sampled_from(["Aa", "BB", "AaBB", "BBAa", "peTzWR", "oKNIEt", "UaAahTbH"])

TOPICS = st.one_of(
    st.sampled_from(["T", "TopicTest", "%RETRY%group", "SCHEDULE_TOPIC_XXXX"]),
    st.text("%|abcXYZ019_-", min_size=1, max_size=255),
)

# A word of KEYS has no space, and the two bytes that part properties stay out of all of them.
KEYS = COLLIDING_KEYS | UTF8_TEXTS.map(lambda text: text.translate({0x01: "1", 0x02: "2", 0x20: "_"}) or "empty")
PROPERTY_TEXTS = UTF8_TEXTS.map(lambda text: text.translate({0x01: "1", 0x02: "2"}) or "empty")

HOSTS_V4 = st.tuples(st.ip_addresses(v=4).map(str), I32)
HOSTS_V6 = st.tuples(st.ip_addresses(v=6).map(str), I32)
HOSTS = HOSTS_V4 | HOSTS_V6

BODIES = st.binary(max_size=40) | st.binary(min_size=1, max_size=1).map(lambda byte: byte * 5000)


@st.composite
def key_properties(draw: st.DrawFn) -> str:
    """A value of KEYS: words between single, double, leading and trailing spaces, some of them repeated."""
    words = draw(st.lists(KEYS | st.just(""), min_size=1, max_size=5))
    if draw(st.booleans()):
        words += words
    return " ".join(words) or " "


@st.composite
def properties(draw: st.DrawFn) -> dict[str, str]:
    """Properties that survive a round trip, RocketMQ's own among them."""
    chosen = draw(st.dictionaries(PROPERTY_TEXTS, PROPERTY_TEXTS, max_size=3))
    known = {"KEYS": key_properties(), "TAGS": PROPERTY_TEXTS, "UNIQ_KEY": PROPERTY_TEXTS}
    chosen |= draw(st.fixed_dictionaries({}, optional=known))
    order = draw(st.permutations(list(chosen)))
    return {name: chosen[name] for name in order}


@st.composite
def property_blobs(draw: st.DrawFn) -> bytes:
    """Property bytes as they may lie on disk: well-formed, cut, repeated, lacking names or values, no UTF-8."""
    well_formed = properties().map(encode_properties)
    broken = st.lists(
        st.sampled_from([b"\x01", b"\x02", b"K", b"KEYS", b"TAGS", b"UNIQ_KEY", b" ", b"\xed\xa0\x80", b"\xff"]),
        max_size=12,
    ).map(b"".join)
    blob = b"".join(draw(st.lists(well_formed | broken | st.binary(max_size=8), max_size=3)))
    # 4.9 leaves the last separator out.
    return blob.removesuffix(b"\x02") if draw(st.booleans()) else blob


@st.composite
def records(draw: st.DrawFn, *, blobs: st.SearchStrategy[bytes] | None = None) -> Record:
    """One record with fields that agree with each other: version with topic, sys_flag with hosts."""
    topic = draw(TOPICS)
    born_host = draw(HOSTS)
    store_host = draw(HOSTS)
    sys_flag = draw(st.sampled_from([0, PREPARED, COMMIT, ROLLBACK]))
    if ":" in born_host[0]:
        sys_flag |= BORN_HOST_IS_IPV6
    if ":" in store_host[0]:
        sys_flag |= STORE_HOST_IS_IPV6
    return Record(
        topic=topic,
        queue=draw(st.integers(0, 2**31 - 1)),
        queue_offset=draw(st.integers(0, 2**63 - 1)),
        physical_offset=draw(st.integers(0, 2**63 - 1)),
        flag=draw(I32),
        sys_flag=sys_flag,
        born_timestamp_ms=draw(I64),
        born_host=born_host,
        store_timestamp_ms=draw(st.integers(0, 2**41)),
        store_host=store_host,
        reconsume_times=draw(I32),
        prepared_transaction_offset=draw(I64),
        stored_body=draw(BODIES),
        properties_data=draw(properties().map(encode_properties) if blobs is None else blobs),
        version=1 if len(topic) <= 127 else 2,
    )


@st.composite
def log_files(
    draw: st.DrawFn, *, file_size: int = 16_384, blobs: st.SearchStrategy[bytes] | None = None
) -> tuple[bytes, int, list[Record]]:
    """One CommitLog file: its bytes, its base offset, and what was put into it.

    The records have their physical offsets. The file ends in zeros, or in a blank when records did not fit.
    """
    base_offset = file_size * draw(st.integers(0, 1000))
    wanted = draw(st.lists(records(blobs=blobs), max_size=8))
    data, left = encode_log_file(wanted, base_offset, file_size)
    placed = []
    position = 0
    for record in wanted[: len(wanted) - len(left)]:
        placed.append(replace(record, physical_offset=base_offset + position))
        position += int.from_bytes(data[position : position + 4], "big")
    return data, base_offset, placed
