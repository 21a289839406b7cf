"""Verify and repair of fields: nothing that was built can change unnoticed, and it comes back byte for byte."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.field_maker import field_files, field_texts
from tests.pipeline.field_builds import (
    EXPRESSIONS,
    build_fields,
    definition,
    field_of,
    noted,
    repair_fields,
    verify_fields,
)
from tests.pipeline.test_build import build
from tests.pipeline.test_fields import MESSAGES, SMALL, expected
from tests.pipeline.test_verify import files_of
from tests.reference import Record
from tests.store_maker import FILE_SIZE, MadeStore, make_store, message
from whence.errors import UsageError
from whence.files.disk import Disk
from whence.formats.rocketmq.index_file import IndexHeader
from whence.pipeline import plan
from whence.store.findings import LISTED_MAX, FindingKind
from whence.store.index_file import Shape

KINDS = ("index", "values")
REPAIR = "build this field anew from the log"
Damage = Callable[[Path, MadeStore], None]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Nothing waits for the disk, and logs of some kilobytes are cut into many stretches."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)
    monkeypatch.setattr(plan, "BLOCK_SIZE", 128)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> MadeStore:
    return make_store(tmp_path_factory.mktemp("verify") / "store", MESSAGES)


@pytest.fixture(scope="module")
def fresh(made, tmp_path_factory) -> Path:
    """The sidecar of a store, with two fields."""
    sidecar = tmp_path_factory.mktemp("fresh") / "s"
    build_fields(made.folder, sidecar, definition("words"), definition("first"), **SMALL)
    return sidecar


@pytest.fixture
def built(fresh, tmp_path) -> Path:
    return Path(shutil.copytree(fresh, tmp_path / "s"))


def paths_of(sidecar: Path, kind: str) -> list[Path]:
    return sorted((sidecar / "fields/words" / kind).iterdir())


def word_count(records):
    return len([text for record in records for text in field_texts(record, EXPRESSIONS["words"])])


@pytest.mark.parametrize("jobs", [1, 2, 3, 7])
def test_what_was_built_is_healthy(made, built, jobs):
    found = verify_fields(made.folder, built, jobs=jobs)
    assert found.damage == []
    words = word_count(made.records)
    assert found.to_dict()["fields"]["words"] == {
        "items": words,
        "files": -(-words // 19),
        "missing": 0,
        "dangling": 0,
        "wrong": 0,
    }


def test_a_log_that_has_grown_is_judged_as_far_as_a_field_is_indexed(made, tmp_path):
    part = make_store(tmp_path / "part", MESSAGES[:70])
    build_fields(part.folder, tmp_path / "s", definition("words"), **SMALL)
    build(made.folder, tmp_path / "s", fields=noted(tmp_path / "s").fields, **SMALL)
    assert noted(tmp_path / "s").fields["words"].indexed_to == part.end_offset < made.end_offset
    found = verify_fields(made.folder, tmp_path / "s", jobs=3)
    assert found.damage == []
    assert found.fields["words"].items == word_count(part.records)


@pytest.mark.slow
def test_changed_bytes_are_found_and_told_with_their_file(made, built):
    for path in [paths_of(built, kind)[number] for kind in KINDS for number in (0, 1, -1)]:
        data = path.read_bytes()
        for place in range(0, len(data), 41):  # all places in items, slots and hashes come in turn
            path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
            found = verify_fields(made.folder, built)
            assert {finding.path for finding in found.damage} == {path}, place
            assert found.damaged_fields == ["words"] and not found.is_badly_indexed
            assert {finding.repair for finding in found.damage} == {REPAIR}
        path.write_bytes(data)
    assert verify_fields(made.folder, built).is_healthy


def test_a_changed_value_is_told_with_its_item_and_byte(made, built):
    path = paths_of(built, "values")[1]
    change(path, 16 * 5 + 3)
    (finding,) = verify_fields(made.folder, built).damage
    assert (finding.path, finding.position, finding.kind) == (path, 80, FindingKind.WRONG_VALUE)
    assert finding.detail == "item 5 has the hash of another value than its message has"


def change(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


# Damage of all kinds


def changed(kind: str, number: int, place: int) -> Damage:
    return lambda sidecar, made: change(paths_of(sidecar, kind)[number], place)


def gone(kind: str, number: int) -> Damage:
    return lambda sidecar, made: paths_of(sidecar, kind)[number].unlink()


def cut(kind: str, number: int, by: int) -> Damage:
    return lambda sidecar, made: _put(paths_of(sidecar, kind)[number], lambda data: data[:by])


def longer(kind: str, number: int) -> Damage:
    return lambda sidecar, made: _put(paths_of(sidecar, kind)[number], lambda data: data + bytes(16))


def of_another(kind: str) -> Damage:
    return lambda sidecar, made: _put(paths_of(sidecar, kind)[1], lambda _: paths_of(sidecar, kind)[2].read_bytes())


def swap_values(sidecar: Path, made: MadeStore) -> None:
    """Two true hashes in each other's place."""
    _put(paths_of(sidecar, "values")[0], lambda data: data[:16] + data[32:48] + data[16:32] + data[48:])


def _put(path: Path, how: Callable[[bytes], bytes]) -> None:
    path.write_bytes(how(path.read_bytes()))


def no_files(sidecar: Path, made: MadeStore) -> None:
    shutil.rmtree(sidecar / "fields/words")


def extra_files(sidecar: Path, made: MadeStore) -> None:
    for kind in KINDS:
        shutil.copy(paths_of(sidecar, kind)[0], sidecar / "fields/words" / kind / "20991231235959999")


def built_of(values: Callable[[Record], list[str]]) -> Damage:
    """Whole files of other values, which agree with each other: only the expression can tell."""

    def put(sidecar: Path, made: MadeStore) -> None:
        for place, data in field_files(made.records, values, 7, 20).items():
            (sidecar / "fields/words" / place).write_bytes(data)

    return put


def without_some(record: Record) -> list[str]:
    return [] if record.keys == ["k3"] else list(EXPRESSIONS["words"](record))


def with_more(record: Record) -> list[str]:
    return [*EXPRESSIONS["words"](record), *(["added"] if record.keys == ["k3"] else [])]


def with_others(record: Record) -> list[str]:
    return [word.upper() for word in EXPRESSIONS["words"](record)]


def noting(**lie: Any) -> Damage:
    """What sidecar.json says of the field."""

    def write(sidecar: Path, made: MadeStore) -> None:
        known = noted(sidecar)
        told = {name: value(known.fields["words"], made) if callable(value) else value for name, value in lie.items()}
        lying = replace(known.fields["words"], **told)
        replace(known, fields=known.fields | {"words": lying}).write(sidecar, Disk())

    return write


DAMAGE: dict[str, Damage] = {
    "a header": changed("index", 1, 3),
    "the newest header": changed("index", -1, 39),
    "a slot": changed("index", 0, 43),
    "an item": changed("index", 1, 40 + 4 * 7 + 25),
    "a link": changed("index", -1, 40 + 4 * 7 + 20 * 2 - 1),
    "a value": changed("values", 0, 16 * 3),
    "the place of item 0": changed("values", 1, 7),
    "the last value": changed("values", -1, -1),
    **{f"no {kind} {number}": gone(kind, number) for kind in KINDS for number in (0, 1, -1)},
    **{f"a cut {kind} {number}": cut(kind, number, -16) for kind in KINDS for number in (0, 1, -1)},
    **{f"an empty {kind} {number}": cut(kind, number, 0) for kind in KINDS for number in (0, -1)},
    **{f"a longer {kind} {number}": longer(kind, number) for kind in KINDS for number in (0, -1)},
    **{f"{kind} of another file": of_another(kind) for kind in KINDS},
    "values that are exchanged": swap_values,
    "no files": no_files,
    "extra files": extra_files,
    "items that are missing": built_of(without_some),
    "items that were added": built_of(with_more),
    "items of other values": built_of(with_others),
    "another newest header": noting(newest_header=IndexHeader(1, 2, 3, 4, 5, 6)),
    "no names": noting(index_names=()),
    "a name that is not there": noting(index_names=("20991231235959999",)),
    "a name too few": noting(index_names=lambda field, made: field.index_names[1:]),
    "names in another order": noting(index_names=lambda field, made: field.index_names[::-1]),
    "a name twice": noting(index_names=lambda field, made: field.index_names + field.index_names[-1:]),
    "indexed from within a record": noting(indexed=((64, 900),)),
    "indexed up to within a record": noting(indexed=((0, 900),)),
    "indexed less far": noting(indexed=lambda field, made: ((0, made.offsets[50]),)),
    "indexed behind the end": noting(indexed=((0, 2**40),)),
    "indexed nowhere": noting(indexed=()),
    "in two stretches": noting(indexed=lambda field, made: ((0, 4096), (8192, field.indexed_to))),
    "another log": noting(last_record=b"x" * 48),
    "other slots": noting(slots=8),
    "other items": noting(items=21),
    "another Spark": noting(spark="3.5.1"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_and_mended_byte_for_byte(made, built, fresh, kind):
    DAMAGE[kind](built, made)
    found = verify_fields(made.folder, built)
    assert found.damaged_fields == ["words"]
    assert not found.is_badly_indexed and not found.is_healthy
    assert {finding.repair for finding in found.damage} == {REPAIR}
    times = {path: path.stat().st_mtime_ns for path in (built / "fields/first").rglob("*")}
    mended, left = repair_fields(made.folder, built, found, jobs=3)
    assert left == [] and {Path(each.path).parent.parent.name for each in mended} == {"words"}
    assert files_of(built) == files_of(fresh)
    assert verify_fields(made.folder, built).is_healthy
    assert {path: path.stat().st_mtime_ns for path in (built / "fields/first").rglob("*")} == times


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("no index 1", {"missing": 19, "dangling": 0, "wrong": 1}),
        ("no values 1", {"missing": 0, "dangling": 0, "wrong": 1}),
        ("items that are missing", {"missing": 3}),
        ("items that were added", {"missing": 2, "dangling": 2}),  # each file has one that belongs into the next
    ],
)
def test_items_are_counted(made, built, kind, told):
    DAMAGE[kind](built, made)
    counted = verify_fields(made.folder, built).to_dict()["fields"]["words"]
    assert {name: counted[name] for name in told} == told, counted


def test_a_field_of_another_spark_is_not_evaluated_but_named(made, built):
    found = verify_fields(made.folder, built, version="4.1.0")
    assert [finding.kind for finding in found.damage] == [FindingKind.OUTDATED] * 2
    assert [finding.detail for finding in found.damage] == [
        f"field {name} was computed with Spark 4.0.0, and this is 4.1.0: build it anew" for name in ("words", "first")
    ]
    repair_fields(made.folder, built, found, version="4.1.0")
    assert {claim.spark for claim in noted(built).fields.values()} == {"4.1.0"}
    assert verify_fields(made.folder, built, version="4.1.0").is_healthy


def test_folders_of_fields_that_nobody_noted_are_found_and_removed(made, built, fresh):
    (built / "fields/orphan/index").mkdir(parents=True)
    found = verify_fields(made.folder, built)
    assert [(finding.path, finding.kind) for finding in found.damage] == [
        (built / "fields/orphan", FindingKind.UNEXPECTED)
    ]
    mended, left = repair_fields(made.folder, built, found)
    assert ([(each.path, each.what) for each in mended], left) == ([(str(built / "fields/orphan"), "removed")], [])
    assert files_of(built) == files_of(fresh) and not (built / "fields/orphan").exists()


def test_a_field_whose_expression_is_refused_is_left_and_the_others_are_mended(made, built):
    noting(sql="refused")(built, made)
    change(sorted((built / "fields/first/values").iterdir())[0], 20)
    found = verify_fields(made.folder, built)
    assert found.damaged_fields == ["first"]
    mended, left = repair_fields(made.folder, built, found)
    assert {Path(each.path).parent.parent.name for each in mended} == {"first"}
    assert [finding.detail for finding in left] == ["field words: refused is refused"]
    assert "give it another expression" in left[0].repair
    assert field_of(built, "first") == expected(made, "first")
    assert field_of(built, "words") == expected(made, "words")


def test_a_field_that_fails_behind_its_end_holds_up_no_other(made, tmp_path):
    """It was indexed up to where its expression fails: it cannot be built anew, but the others can."""
    part = make_store(tmp_path / "part", MESSAGES[:70])
    sidecar = tmp_path / "s"
    build_fields(part.folder, sidecar, definition("words"), definition("first"), **SMALL)
    build(made.folder, sidecar, fields=noted(sidecar).fields, **SMALL)

    def failing(message):
        if message.physical_offset >= part.end_offset:
            raise UsageError(f"field words: its expression fails on the message at {message.physical_offset}")
        return EXPRESSIONS["words"](message)

    how = {"expressions": EXPRESSIONS | {"words": failing}}
    assert verify_fields(made.folder, sidecar, **how).is_healthy
    before = field_of(sidecar, "words")
    for name in ("words", "first"):
        change(sorted((sidecar / "fields" / name / "values").iterdir())[0], 20)
    found = verify_fields(made.folder, sidecar, **how)
    assert set(found.damaged_fields) == {"first", "words"}
    mended, (left,) = repair_fields(made.folder, sidecar, found, **how)
    assert {Path(each.path).parent.parent.name for each in mended} == {"first"}
    assert left.detail == f"field words: its expression fails on the message at {part.end_offset}"
    assert field_of(sidecar, "first") == expected(made, "first")
    assert field_of(sidecar, "words").keys() == before.keys()


def test_many_wrong_values_are_counted_and_a_hundred_listed(tmp_path):
    made = make_store(tmp_path / "store", [message(body=b"a b c", at=n, keys="k") for n in range(60)])
    settings = SMALL | {"shape": Shape(7, 500)}
    build_fields(made.folder, tmp_path / "s", definition("words"), **settings)
    _put(paths_of(tmp_path / "s", "values")[0], lambda data: bytes(len(data)))
    found = verify_fields(made.folder, tmp_path / "s")
    assert found.fields["words"].counts == {FindingKind.WRONG_VALUE: 180}
    assert (len(found.damage), found.unlisted) == (LISTED_MAX, 80)


# What the log lost


def test_a_field_of_a_log_that_expired_in_part_is_judged_by_the_rest(tmp_path):
    made = make_store(tmp_path / "store", MESSAGES)
    build_fields(made.folder, tmp_path / "s", definition("words"), **SMALL)
    made.log_files[0].unlink()
    assert verify_fields(made.folder, tmp_path / "s").fields["words"].damage == []
    path = paths_of(tmp_path / "s", "values")[-1]
    change(path, -1)
    found = verify_fields(made.folder, tmp_path / "s")
    assert [finding.path for finding in found.damage] == [path]
    repair_fields(made.folder, tmp_path / "s", found)
    left = [record for record in made.records if record.physical_offset >= FILE_SIZE]
    assert field_of(tmp_path / "s", "words") == field_files(left, EXPRESSIONS["words"], 7, 20)
    assert verify_fields(made.folder, tmp_path / "s").fields["words"].damage == []


def test_a_gap_that_the_log_got_since_makes_its_items_dangle(tmp_path):
    made = make_store(tmp_path / "store", MESSAGES)
    build_fields(made.folder, tmp_path / "s", definition("words"), **SMALL)
    made.log_files[1].unlink()
    found = verify_fields(made.folder, tmp_path / "s")
    lost = [record for record in made.records if FILE_SIZE <= record.physical_offset < 2 * FILE_SIZE]
    counts = found.fields["words"].counts
    assert counts[FindingKind.DANGLING] >= word_count(lost)
    assert counts[FindingKind.WRONG_CLAIM] == 1
    repair_fields(made.folder, tmp_path / "s", found)
    left = [record for record in made.records if record not in lost]
    assert field_of(tmp_path / "s", "words") == field_files(left, EXPRESSIONS["words"], 7, 20)
    assert verify_fields(made.folder, tmp_path / "s").fields["words"].damage == []
