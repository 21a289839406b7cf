"""sidecar.json: what is written is read again, and what whence did not write is refused by its name."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.disks import UnflushedDisk
from tests.store_maker import make_store, message
from whence.errors import CorruptError, FormatError, UnsupportedError
from whence.formats.rocketmq.index_file import IndexHeader
from whence.store.commit_log import CommitLog
from whence.store.field_claim import SQL_SIZE_MAX, FieldClaim, check_field_name
from whence.store.index_file import IndexFile, Shape
from whence.store.message_store import Dialect
from whence.store.sidecar import Claim, Sidecar, decode_sidecar, read_sidecar, thinned_marks

FIELD = FieldClaim(
    sql="get_json_object(cast(body as string), '$.city')",
    session_zone="Europe/Paris",
    ansi=True,
    spark="4.0.1",
    slots=97,
    items=400,
    indexed=((0, 65536),),
    last_record_offset=65000,
    last_record=b"\x02" * 48,
    index_names=("20250101120000000",),
    newest_header=IndexHeader(6, 5, 4, 3, 2, 7),
)
SIDECAR = Sidecar(
    dialect=Dialect.V5_3,
    slots=97,
    items=400,
    queue_file_size=2000,
    indexed=((0, 65536), (131072, 200000)),
    last_record_offset=199000,
    last_record=b"\x01" * 48,
    index_names=("20250101120000000", "20260101120000000"),
    newest_header=IndexHeader(1, 2, 3, 4, 5, 6),
    other_topics=("a/b", "ü"),
    fields={"city": FIELD},
)
offsets = st.integers(0, 2**63 - 1)
FIELDS = st.builds(
    FieldClaim,
    sql=st.text(min_size=1, max_size=9),
    session_zone=st.text(max_size=9),
    ansi=st.booleans(),
    spark=st.text(max_size=9),
    slots=st.integers(1, 5_000_000),
    items=st.integers(2, 20_000_000),
    indexed=st.lists(st.tuples(offsets, offsets).map(sorted).map(tuple), max_size=3).map(tuple),
    last_record_offset=st.integers(-1, 2**63 - 1),
    last_record=st.binary(max_size=48),
    index_names=st.lists(st.from_regex(r"[0-9]{17}", fullmatch=True), max_size=3).map(tuple),
    newest_header=st.builds(IndexHeader, *[st.integers(-(2**63) + 1, 2**63 - 1)] * 6),
)


@given(
    st.builds(
        Sidecar,
        dialect=st.sampled_from(list(Dialect)),
        slots=st.integers(1, 5_000_000),
        items=st.integers(2, 20_000_000),
        queue_file_size=st.integers(20, 2**31 - 1),
        indexed=st.lists(st.tuples(offsets, offsets).map(sorted).map(tuple), max_size=3).map(tuple),
        last_record_offset=st.integers(-1, 2**63 - 1),
        last_record=st.binary(max_size=48),
        index_names=st.lists(st.from_regex(r"[0-9]{17}", fullmatch=True), max_size=3).map(tuple),
        newest_header=st.builds(IndexHeader, *[st.integers(-(2**63) + 1, 2**63 - 1)] * 6),
        in_place=st.booleans(),
        other_topics=st.lists(st.text(max_size=5), max_size=3).map(tuple),
        fields=st.dictionaries(st.from_regex(r"[a-z0-9_][a-z0-9_-]{0,63}", fullmatch=True), FIELDS, max_size=2),
        marks=st.dictionaries(offsets, st.binary(max_size=48), max_size=4).map(
            lambda marks: tuple(sorted(marks.items()))
        ),
        growing=st.booleans(),
    )
)
def test_what_is_written_is_read_again(tmp_path_factory, sidecar):
    folder = tmp_path_factory.mktemp("sidecar")
    sidecar.write(folder, UnflushedDisk())
    assert read_sidecar(folder) == sidecar
    assert [path.name for path in folder.iterdir()] == ["sidecar.json"]


def test_a_folder_without_it_says_nothing(tmp_path):
    assert read_sidecar(tmp_path) is None
    assert Claim(tmp_path / "missing").read() is None


def test_it_says_how_far_the_log_is_indexed():
    assert SIDECAR.indexed_to == 200000
    assert replace(SIDECAR, indexed=()).indexed_to == 0
    assert SIDECAR.shape == Shape(97, 400)


# Whose log it is


def test_the_last_record_tells_whether_it_is_the_same_log(tmp_path):
    made = make_store(tmp_path / "store", [message(keys=f"k{number}") for number in range(9)], base=8192)
    log = CommitLog(made.folder / "commitlog")
    last = made.offsets[-1]
    of_log = replace(SIDECAR, last_record_offset=last, last_record=log.raw(last, 48))
    assert of_log.is_of(log)
    assert not replace(of_log, last_record=bytes(48)).is_of(log)
    assert not replace(of_log, last_record_offset=made.offsets[0]).is_of(log)
    assert not replace(of_log, last_record_offset=2**63 - 1).is_of(log)
    assert replace(of_log, last_record_offset=8191).is_of(log)  # that has expired
    assert replace(of_log, last_record_offset=-1).is_of(log)
    log.close()


def test_marks_tell_how_much_of_a_log_that_was_cut_is_the_same(tmp_path):
    made = make_store(tmp_path / "store", [message(keys=f"k{number}") for number in range(9)], base=8192)
    log = CommitLog(made.folder / "commitlog")
    heads = [(offset, log.raw(offset, 48)) for offset in made.offsets]
    claim = replace(
        SIDECAR,
        indexed=((0, 100), (8192, made.end_offset)),
        marks=((100, b"expired"), *heads[2:6:3]),
        last_record_offset=heads[8][0],
        last_record=heads[8][1],
        queues_size=180,
    )
    assert claim.is_of(log)
    cut = replace(claim, last_record=bytes(48)).cut_to_mark(log)
    assert cut is not None and cut.is_of(log)
    assert (cut.last_record_offset, cut.last_record) == heads[5]
    assert cut.indexed == ((0, 100), (8192, made.offsets[6]))
    assert cut.marks == claim.marks[:-1]
    assert cut.queues_size == -1  # nobody knows
    changed = replace(claim, marks=(*claim.marks[:-1], (heads[5][0], bytes(48))))
    assert not changed.is_of(log)  # although the last record is there: it may lie behind the log's new end
    cut = changed.cut_to_mark(log)
    assert cut is not None and cut.last_record_offset == heads[2][0]
    assert replace(claim, marks=((100, b"expired"), (heads[2][0], bytes(48)))).cut_to_mark(log) is None
    assert replace(claim, marks=(), last_record=bytes(48)).cut_to_mark(log) is None
    log.close()


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=300))
def test_few_marks_are_kept_and_none_is_far_from_the_next(steps):
    """However the log grew, of two marks the older is at most four times as far from its end, but for the oldest."""
    marks: tuple[tuple[int, bytes], ...] = ()
    offset = 0
    for step in steps:
        marks = thinned_marks([*marks, (offset, b"")], offset + step)
        offset += step
    distances = [offset - mark[0] for mark in reversed(marks)]
    assert marks[0][0] == 0 and distances[0] == steps[-1]
    assert all(further <= 4 * nearer or nearer < max(steps) for nearer, further in pairwise(distances))
    assert len(marks) <= 2 + 2 * math.log(max(offset, 2), 2)


def test_an_index_file_is_ours_if_it_is_named_and_as_it_was_left(tmp_path):
    made = make_store(tmp_path / "store", [message(keys=f"k{number}") for number in range(60)])
    first, *_, last = (IndexFile(path) for path in made.index_files)
    names = tuple(path.name for path in made.index_files)
    claim = replace(SIDECAR, in_place=True, index_names=names, newest_header=last.header())
    folder = tmp_path / "sidecar"
    folder.mkdir()

    def ours(claim: Sidecar, file: IndexFile) -> bool:
        claim.write(folder, UnflushedDisk())
        return claim.has_made(file, made.folder if claim.in_place else folder)

    assert ours(claim, first)
    assert ours(claim, last)
    assert ours(replace(claim, newest_header=IndexHeader(0, 0, 0, 0, 0, 1)), first)
    assert not ours(replace(claim, newest_header=IndexHeader(0, 0, 0, 0, 0, 1)), last)
    assert not ours(replace(claim, index_names=names[1:]), first)
    assert not ours(replace(claim, in_place=False), first)
    grown = replace(claim, newest_header=IndexHeader(0, 0, 0, 0, 0, 1), growing=True)
    assert ours(grown, last)  # the follower is ahead of what it says


# What whence did not write


def written(folder: Path) -> dict[str, Any]:
    SIDECAR.write(folder, UnflushedDisk())
    return json.loads((folder / "sidecar.json").read_text())


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("version", "1"),
        ("version", 0),
        ("version", -1),
        ("version", True),
        ("version", 1.0),
        ("version", None),
        ("dialect", "6.0"),
        ("dialect", 5.5),
        ("dialect", []),
        ("slots", 0),
        ("slots", -97),
        ("slots", 2**62),
        ("slots", "97"),
        ("slots", True),
        ("slots", 97.0),
        ("items", 1),
        ("items", 2**31),
        ("items", None),
        ("queue_file_size", 0),
        ("queue_file_size", 2**31),
        ("queue_file_size", {}),
        ("indexed", 7),
        ("indexed", None),
        ("indexed", [7]),
        ("indexed", [[1]]),
        ("indexed", [[1, 2, 3]]),
        ("indexed", [[2, 1]]),
        ("indexed", [[0, 2**63]]),
        ("indexed", [[0, 1e30]]),
        ("indexed", ["ab"]),
        ("last_record", None),
        ("last_record", {}),
        ("last_record", [1, 2]),
        ("last_record", {"offset": 2**70, "head": ""}),
        ("last_record", {"offset": 0, "head": "zz"}),
        ("last_record", {"offset": 0, "head": 7}),
        ("index_files", None),
        ("index_files", 7),
        ("index_files", [7]),
        ("index_files", ["../../etc/passwd"]),
        ("index_files", ["20260101120000000/"]),
        ("index_files", ["/20260101120000000"]),
        ("index_files", [""]),
        ("index_files", ["２０２６"]),
        ("newest_index", None),
        ("newest_index", []),
        ("newest_index", {}),
        ("newest_index", dict.fromkeys(IndexHeader.__dataclass_fields__, "1")),
        ("other_topics", None),
        ("other_topics", [7]),
        ("fields", None),
        ("fields", []),
        ("fields", {"a": 7}),
    ],
)
def test_a_member_that_cannot_be_is_refused_with_the_files_name(tmp_path, member, value):
    document = written(tmp_path) | {member: value}
    (tmp_path / "sidecar.json").write_text(json.dumps(document))
    with pytest.raises(CorruptError, match=r"/sidecar\.json at byte [0-9]+: is not what whence wrote"):
        read_sidecar(tmp_path)


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc", "City", "-a", "a" * 65, "é", "a\n", "a\0"])
def test_a_field_whose_name_is_no_name_is_refused(tmp_path, name):
    document = written(tmp_path)
    document["fields"] = {name: document["fields"]["city"]}
    (tmp_path / "sidecar.json").write_text(json.dumps(document))
    with pytest.raises(CorruptError, match="is not what whence wrote"):
        read_sidecar(tmp_path)


@pytest.mark.parametrize("name", ["a", "order", "order_id", "order-id", "_", "7", "a" * 64])
def test_a_name_of_a_field_is_plain(name):
    assert check_field_name(name) == name


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("sql", ""),
        ("sql", 7),
        ("sql", "x" * (SQL_SIZE_MAX + 1)),
        ("session_zone", None),
        ("session_zone", "x" * 129),
        ("ansi", 1),
        ("spark", ["4.0.0"]),
        ("slots", 0),
        ("items", 2**31),
        ("indexed", [[7, 3]]),
        ("index_files", ["../../x"]),
        ("newest_index", {}),
    ],
)
def test_a_member_of_a_field_that_cannot_be_is_refused(tmp_path, member, value):
    document = written(tmp_path)
    document["fields"]["city"][member] = value
    (tmp_path / "sidecar.json").write_text(json.dumps(document))
    with pytest.raises(CorruptError, match="is not what whence wrote"):
        read_sidecar(tmp_path)


@pytest.mark.parametrize(
    "member",
    [
        "version",
        "kind",
        "dialect",
        "slots",
        "items",
        "queue_file_size",
        "indexed",
        "last_record",
        "index_files",
        "newest_index",
        "in_place",
        "other_topics",
        "fields",
    ],
)
def test_a_member_that_is_missing_is_refused_with_the_files_name(tmp_path, member):
    document = written(tmp_path)
    del document[member]
    (tmp_path / "sidecar.json").write_text(json.dumps(document))
    with pytest.raises(CorruptError, match=rf"/sidecar\.json at byte 0: .*{member}"):
        read_sidecar(tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"7",
        b"[]",
        b'"sidecar"',
        b"\xff\xfe",
        b"\x80" * 9,
        b'{"version": 1, "kind": "\xff"}',
        b"[" * 100_000,
        b'{"version":' * 50_000,
        b'{"version": 1, "kind": "rocketmq", "slots": ' + b"9" * 100_000 + b"}",
        b'{"version": ' + b"9" * 5000 + b', "kind": "rocketmq"}',
        b'{"version": NaN, "kind": "rocketmq"}',
        b'{"version": Infinity, "kind": "rocketmq"}',
        b"\0" * 4096,
    ],
)
def test_what_is_no_such_json_is_refused_with_its_name(tmp_path, data):
    (tmp_path / "sidecar.json").write_bytes(data)
    with pytest.raises(CorruptError, match=r"/sidecar\.json"):
        read_sidecar(tmp_path)
    assert Claim(tmp_path).read() is None


@pytest.mark.parametrize(
    ("member", "value"),
    [("version", 2), ("version", 10**30), ("kind", "kafka"), ("kind", None), ("kind", ["rocketmq"])],
)
def test_another_version_or_kind_is_refused_as_such(tmp_path, member, value):
    document = written(tmp_path) | {member: value}
    (tmp_path / "sidecar.json").write_text(json.dumps(document))
    with pytest.raises(UnsupportedError, match=r"/sidecar\.json: version .* of kind .*, where this whence knows 1"):
        read_sidecar(tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from(["version", "kind", "dialect", "slots", "indexed", "last_record", "index_files", "fields"]),
        json_values,
    )
)
def test_any_members_are_read_or_are_a_format_error(tmp_path_factory, members):
    document = written(tmp_path_factory.mktemp("sidecar")) | members
    try:
        decode_sidecar(json.dumps(document).encode())
    except FormatError:
        pass


@given(st.binary(max_size=60))
def test_any_bytes_are_a_corrupt_error(data):
    with pytest.raises(CorruptError):
        decode_sidecar(data)


def test_a_file_that_was_cut_anywhere_is_refused(tmp_path):
    written(tmp_path)
    data = (tmp_path / "sidecar.json").read_bytes()
    for size in range(len(data) - 1):  # its last byte is a line's end
        with pytest.raises(CorruptError):
            decode_sidecar(data[:size])
