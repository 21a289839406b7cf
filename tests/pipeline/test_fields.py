"""Fields: with any number of tasks, at once or bit by bit, the files of a plain loop over the messages."""

import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whence
from tests.crash.following import Killed, StepDisk
from tests.field_maker import field_files
from tests.lookup.judge import offsets
from tests.pipeline.field_builds import (
    EXPRESSIONS,
    PlainEvaluator,
    build_fields,
    definition,
    field_of,
    noted,
    verify_fields,
    words,
)
from tests.store_maker import FILE_SIZE, QUEUE_FILE_SIZE, make_store, message
from whence.errors import UsageError, WhenceError
from whence.files.disk import Disk
from whence.formats.rocketmq.index_file import decode_header
from whence.pipeline import plan
from whence.pipeline.jobs import is_computed_so, wanted_fields
from whence.store.commit_log import CommitLog
from whence.store.field_claim import FieldClaim
from whence.store.follower import Follower, FollowSettings
from whence.store.index_file import Shape
from whence.store.message_store import Dialect
from whence.store.sidecar import Sidecar, read_sidecar

SMALL = {"shape": Shape(7, 20), "dialect": Dialect.V5_5, "queue_file_size": QUEUE_FILE_SIZE}
WORDS = ["Paris", "Rome", "Aa", "BB", "x#y", "é", "a-rather-long-word-" * 20]
MESSAGES = [
    message(
        body=" ".join(WORDS[number % len(WORDS) :][: number % 4]).encode(),
        at=700 * number,
        topic=f"T{number % 3}",
        keys=f"k{number}",
        sys_flag=0xC if number % 11 == 5 else 0,
    )
    for number in range(120)
]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Nothing waits for the disk, and logs of some kilobytes are cut into many stretches."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)
    monkeypatch.setattr(plan, "BLOCK_SIZE", 128)


@pytest.fixture
def made(tmp_path):
    return make_store(tmp_path / "store", MESSAGES)


def expected(made, sql, items=20, slots=7):
    return field_files(made.records, EXPRESSIONS[sql], slots, items)


@pytest.mark.parametrize("jobs", [1, 2, 3, 7, 40])
def test_the_files_of_a_field_are_the_same_with_any_number_of_tasks(made, tmp_path, jobs):
    built = build_fields(made.folder, tmp_path / "s", definition("words"), definition("first"), jobs=jobs, **SMALL)
    assert field_of(tmp_path / "s", "words") == expected(made, "words")
    assert field_of(tmp_path / "s", "first") == expected(made, "first")
    assert {Path(file.path).parent.name for file in built.files} == {"index", "values"}
    assert all(file.kind == "fields" and len(file.sha256) == 64 for file in built.files)
    assert not (tmp_path / "s/work").exists()
    claim = noted(tmp_path / "s").fields["words"]
    assert (claim.sql, claim.session_zone, claim.ansi, claim.spark) == ("words", "UTC", True, "4.0.0")
    assert claim.indexed == ((0, made.end_offset),)


@pytest.mark.slow
@given(
    bodies=st.lists(st.text("ab é#", max_size=12), max_size=25),
    topics=st.lists(st.sampled_from(["T", "é", "a#b", "long" * 20]), min_size=1, max_size=4),
    slots=st.integers(1, 9),
    items=st.integers(2, 9),
    jobs=st.integers(1, 9),
    parts=st.lists(st.integers(0, 25), max_size=3).map(sorted),
    grows=st.booleans(),
)
def test_a_field_that_grows_with_its_log_is_as_if_built_at_once(
    tmp_path_factory, bodies, topics, slots, items, jobs, parts, grows
):
    folder = tmp_path_factory.mktemp("fields")
    messages = [
        message(body=body.encode(), topic=topics[number % len(topics)], at=400 * number, keys="k")
        for number, body in enumerate(bodies)
    ]
    settings = SMALL | {"shape": Shape(slots, items)}
    made = make_store(folder / "store", messages)
    for number, count in enumerate(part for part in parts if part <= len(messages)):
        part = make_store(folder / f"part-{number}", messages[:count])
        build_fields(part.folder, folder / "s", definition("words"), jobs=jobs, grows=grows, **settings)
    build_fields(made.folder, folder / "s", definition("words"), jobs=jobs, grows=grows, **settings)
    assert field_of(folder / "s", "words") == expected(made, "words", items, slots)
    names = sorted(path.name for path in (folder / "s/fields/words/index").glob("*"))
    assert list(noted(folder / "s").fields["words"].index_names) == names


@pytest.mark.parametrize("seed", range(12))
def test_a_field_that_grows_in_place_is_right_whatever_is_killed_or_read(tmp_path, seed):
    """Between any two steps a reader finds what is said to be indexed; what a kill left is made anew."""
    random = Random(seed)
    items = random.choice([5, 20, 300])
    sidecar, settings = tmp_path / "store.whence", SMALL | {"shape": Shape(7, items)}
    counts = sorted(random.choices(range(1, len(MESSAGES)), k=3))
    made = make_store(tmp_path / "store", MESSAGES[: counts[0]])
    build_fields(made.folder, sidecar, definition("words"), **settings)
    for count in [*counts[1:], len(MESSAGES)]:
        shutil.rmtree(made.folder)
        made = make_store(tmp_path / "store", MESSAGES[:count])
        killed_at = random.choice([10, 30, 1000])

        def look(step: int, made=made, killed_at=killed_at) -> None:
            if random.random() < 0.2:
                check_words(made, sidecar, random.choice(WORDS))
            if step > killed_at:
                raise Killed

        with suppress(Killed):
            build_fields(made.folder, sidecar, definition("words"), disk=StepDisk(look), grows=True, **settings)
    build_fields(made.folder, sidecar, definition("words"), grows=True, **settings)
    assert field_of(sidecar, "words") == expected(made, "words", items)


def test_what_leads_to_expired_messages_goes_with_them_when_a_log_is_followed(made, tmp_path):
    sidecar = tmp_path / "store.whence"
    build_fields(made.folder, sidecar, definition("words"), definition("nothing"), **SMALL)
    before = noted(sidecar).fields["words"].index_names
    files = sorted((made.folder / "commitlog").iterdir())
    for path in files[: len(files) // 2]:
        path.unlink()
    log, settings = CommitLog(made.folder / "commitlog"), FollowSettings(*SMALL.values())
    follower = Follower(log, sidecar, settings, noted(sidecar), Disk())
    assert follower.check()
    follower.close()
    left = noted(sidecar).fields["words"].index_names
    assert 0 < len(left) < len(before) and left == before[-len(left) :]
    for kind in ("index", "values"):
        assert sorted(path.name for path in (sidecar / "fields/words" / kind).iterdir()) == list(left)
    there = [record for record in made.records if record.physical_offset >= log.begin_offset]
    for word in WORDS:
        check_words(replace(made, records=there), sidecar, word)
    assert verify_fields(made.folder, sidecar).is_healthy
    log.close()


def check_words(made, sidecar, word):
    """All messages of what is indexed of a field are found, in order, and none twice."""
    with whence.open(made.folder, out=sidecar) as store:
        answer = store.find(field={"words": word}, limit=None)
        known = noted(sidecar).fields["words"]
    wanted = [r.physical_offset for r in made.records if word in words(r) and not r.is_rollback]
    assert offsets(answer) == [offset for offset in wanted if offset < known.indexed_to][::-1]


def test_only_what_is_new_is_evaluated(tmp_path):
    part = make_store(tmp_path / "part", MESSAGES[:70])
    build_fields(part.folder, tmp_path / "s", definition("words"), **SMALL)
    made = make_store(tmp_path / "store", MESSAGES)
    built = build_fields(made.folder, tmp_path / "s", definition("words"), definition("first"), **SMALL)
    words, first = built.fields
    assert (words.from_offset, first.from_offset) == (part.end_offset, 0)
    assert words.new_items < words.items
    assert words.to_offset == made.end_offset
    again = build_fields(made.folder, tmp_path / "s", definition("words"), definition("first"), **SMALL)
    assert (again.fields, again.files) == ((), ())


def test_lookups_find_what_was_built(made, tmp_path):
    build_fields(made.folder, tmp_path / "store.whence", definition("words"), **SMALL)
    with whence.open(made.folder) as store:
        for word in WORDS:
            answer = store.find(field={"words": word}, limit=None)
            found = [r.physical_offset for r in made.records if word in EXPRESSIONS["words"](r) and not r.is_rollback]
            assert offsets(answer) == found[::-1] != []
            assert answer.receipt.complete


def test_a_message_may_have_more_values_than_fit_into_two_bytes(tmp_path):
    made = make_store(tmp_path / "store", [message(keys="a"), message(keys="many"), message(keys="b")])
    settings = SMALL | {"shape": Shape(1009, 50_000)}
    build_fields(made.folder, tmp_path / "s", definition("many"), **settings)
    names = noted(tmp_path / "s").fields["many"].index_names
    assert len(names) == 2
    assert field_of(tmp_path / "s", "many").keys() == {f"{kind}/{n}" for kind in ("index", "values") for n in names}
    sizes = [(tmp_path / "s/fields/many/values" / name).stat().st_size for name in names]
    assert sum(sizes) == 16 * (2 + 70_002)


def test_a_field_without_values_has_no_files_and_is_indexed(made, tmp_path):
    build_fields(made.folder, tmp_path / "s", definition("nothing"), **SMALL)
    claim = noted(tmp_path / "s").fields["nothing"]
    assert (claim.index_names, claim.indexed) == ((), ((0, made.end_offset),))
    assert field_of(tmp_path / "s", "nothing") == {}


# Built anew


@pytest.mark.parametrize(
    ("change", "how"),
    [
        ({"sql": "first"}, {}),
        ({"zone": "Europe/Paris"}, {}),
        ({"ansi": False}, {}),
        ({}, {"version": "4.0.1"}),
        ({}, {"rebuild": True}),
    ],
)
def test_another_expression_session_or_spark_builds_a_field_anew(made, tmp_path, change, how):
    build_fields(made.folder, tmp_path / "s", definition("words"), definition("other", "words"), **SMALL)
    changed = definition("words", **{"sql": "words"} | change)
    built = build_fields(made.folder, tmp_path / "s", changed, definition("other", "words"), **SMALL | how)
    assert built.fields[-1].from_offset == 0
    assert field_of(tmp_path / "s", "words") == expected(made, changed.sql)
    assert field_of(tmp_path / "s", "other") == expected(made, "words")
    claim = noted(tmp_path / "s").fields["words"]
    assert (claim.sql, claim.session_zone, claim.ansi) == (changed.sql, changed.session_zone, changed.ansi)
    if change:
        assert [field.name for field in built.fields] == ["words"]


@pytest.mark.parametrize("kind", ["index", "values"])
@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("how", ["gone", "cut"])
def test_files_that_are_not_as_they_were_left_are_built_anew(made, tmp_path, kind, number, how):
    build_fields(made.folder, tmp_path / "s", definition("words"), **SMALL)
    path = sorted((tmp_path / "s/fields/words" / kind).iterdir())[number]
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-16])
    build_fields(made.folder, tmp_path / "s", definition("words"), **SMALL)
    assert field_of(tmp_path / "s", "words") == expected(made, "words")


def test_the_sidecar_of_another_log_gives_no_values(made, tmp_path):
    other = make_store(tmp_path / "other", [message(body=b"Oslo", at=3 * n, keys="k") for n in range(50)])
    build_fields(other.folder, tmp_path / "s", definition("words"), **SMALL)
    build_fields(made.folder, tmp_path / "s", definition("words"), **SMALL)
    assert field_of(tmp_path / "s", "words") == expected(made, "words")


def test_fields_that_fail_stay_as_they_were_and_hold_up_no_other(made, tmp_path):
    """One that is new, one that goes on, and one whose expression is another one now."""
    part, sidecar = make_store(tmp_path / "part", MESSAGES[:50]), tmp_path / "s"
    log = CommitLog(made.folder / "commitlog")

    def failing(message):
        if message.physical_offset >= part.end_offset:
            raise UsageError(f"it fails at {part.end_offset}")
        return words(message)

    fields = [definition(name) for name in ("changed", "first", "goes_on", "words")]
    expressions = EXPRESSIONS | {"goes_on": words, "changed": words, "new": failing}
    try:
        before = PlainEvaluator(log, expressions)
        build_fields(part.folder, sidecar, *fields, evaluator=before, **SMALL)
        was = noted(sidecar).fields
        fields += [definition("new"), definition("other", "first")]
        after = PlainEvaluator(log, expressions | {"goes_on": failing, "changed once": failing})
        fields[0] = definition("changed", "changed once")
        built = build_fields(made.folder, sidecar, *fields, evaluator=after, **SMALL)
    finally:
        log.close()
    assert {name: str(error) for name, error in built.failures.items()} == dict.fromkeys(
        ("changed", "goes_on", "new"), f"it fails at {part.end_offset}"
    )
    assert [field.name for field in built.fields] == ["first", "words", "other"]
    claim = noted(sidecar)
    assert {name: claim.fields[name] for name in ("changed", "goes_on")} == {
        name: was[name] for name in ("changed", "goes_on")
    }
    assert claim.fields.keys() == {*was, "other"} and not (sidecar / "fields/new").exists()
    for name, sql in (("first", "first"), ("words", "words"), ("other", "first")):
        assert claim.fields[name].indexed_to == claim.indexed_to == made.end_offset
        assert field_of(sidecar, name) == expected(made, sql)
    for name in ("changed", "goes_on"):
        assert field_of(sidecar, name) == expected(part, "words")
    assert not (sidecar / "work").exists()


def test_fields_that_are_not_wanted_any_more_go_with_their_files(made, tmp_path):
    build_fields(made.folder, tmp_path / "s", definition("words"), definition("first"), **SMALL)
    (tmp_path / "s/fields/orphan/index").mkdir(parents=True)
    built = build_fields(made.folder, tmp_path / "s", definition("first"), **SMALL)
    assert built.fields == ()
    assert [path.name for path in (tmp_path / "s/fields").iterdir()] == ["first"]
    assert list(noted(tmp_path / "s").fields) == ["first"]


# What the log lost


def test_a_gap_of_the_log_is_no_part_of_what_is_indexed(tmp_path):
    made = make_store(tmp_path / "store", MESSAGES)
    made.log_files[2].unlink()
    build_fields(made.folder, tmp_path / "s", definition("words"), **SMALL)
    claim = noted(tmp_path / "s").fields["words"]
    assert claim.indexed == ((0, 2 * FILE_SIZE), (3 * FILE_SIZE, made.end_offset))
    left = [r for r in made.records if not 2 * FILE_SIZE <= r.physical_offset < 3 * FILE_SIZE]
    assert field_of(tmp_path / "s", "words") == field_files(left, EXPRESSIONS["words"], 7, 20)


def test_files_of_a_field_go_with_the_messages_that_have_expired_from_the_log(tmp_path):
    made = make_store(tmp_path / "store", MESSAGES[:80])
    build_fields(made.folder, tmp_path / "s", definition("words"), **SMALL)
    grown = make_store(tmp_path / "grown", MESSAGES)
    grown.log_files[0].unlink()
    build_fields(grown.folder, tmp_path / "s", definition("words"), **SMALL)
    all_files, found = expected(grown, "words"), field_of(tmp_path / "s", "words")
    ends = {
        Path(name).name: decode_header(data).end_physical_offset
        for name, data in all_files.items()
        if name.startswith("index/")
    }
    assert min(ends.values()) < FILE_SIZE
    assert found == {name: data for name, data in all_files.items() if ends[Path(name).name] >= FILE_SIZE}
    claim = noted(tmp_path / "s").fields["words"]
    assert claim.indexed == ((0, grown.end_offset),)
    assert [f"index/{name}" for name in claim.index_names] == sorted(
        name for name in found if name.startswith("index/")
    )
    assert verify_fields(grown.folder, tmp_path / "s").fields["words"].damage == []


# Killed at any step


class DyingDisk(Disk):
    """Dies before its ``left``-th rename, replacement or removal."""

    def __init__(self, left: int) -> None:
        self.left = left

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def replace(self, path: Path, data: bytes) -> None:
        self._step()
        super().replace(path, data)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)


@pytest.mark.slow
@pytest.mark.parametrize("change", [None, "words", "first"])
def test_a_build_that_is_killed_at_any_step_leaves_answers_right_and_is_gone_on_with(tmp_path, change):
    """``change``: what the field is before; None if it is not there."""
    part = make_store(tmp_path / "store", MESSAGES[:70])
    sidecar = tmp_path / "store.whence"
    if change is not None:
        build_fields(part.folder, sidecar, definition("f", change), **SMALL)
    shutil.copytree(tmp_path, tmp_path / "begun")
    shutil.rmtree(part.folder)
    made = make_store(tmp_path / "store", MESSAGES)
    for left in range(100):
        shutil.rmtree(sidecar, ignore_errors=True)
        if change is not None:
            shutil.copytree(tmp_path / "begun/store.whence", sidecar)
        try:
            build_fields(made.folder, sidecar, definition("f", "words"), disk=DyingDisk(left), **SMALL)
            break
        except KeyboardInterrupt:
            check_answers(made, sidecar, change)
        build_fields(made.folder, sidecar, definition("f", "words"), **SMALL)
        assert field_of(sidecar, "f") == expected(made, "words")
    else:
        pytest.fail("it was always killed")
    assert left > 5


def check_answers(made, sidecar, change):
    """What is found is right by the old expression or by the new one; and all, where the answer says so."""
    known = read_sidecar(sidecar)
    if known is None or "f" not in known.fields:
        return
    assert known.fields["f"].sql in (change, "words")
    meant = EXPRESSIONS[known.fields["f"].sql]
    with whence.open(made.folder) as store:
        for word in ("Rome", "P"):
            answer = store.find(field={"f": word}, limit=None)
            right = [r.physical_offset for r in made.records if word in meant(r) and not r.is_rollback][::-1]
            assert set(offsets(answer)) <= set(right)
            assert offsets(answer) == right or not answer.receipt.complete


# What a user asks for


def claim_of(sql):
    return FieldClaim(sql, "UTC", True, "4.0.0", 7, 20)


KNOWN = Sidecar(Dialect.V5_5, 7, 20, 200, fields={"a": claim_of("x"), "b": claim_of("y")})


@pytest.mark.parametrize(
    ("known", "asked", "wanted"),
    [
        (None, {}, {}),
        (None, {"a": "x"}, {"a": "x"}),
        (KNOWN, {}, {"a": "x", "b": "y"}),
        (KNOWN, {"a": "z"}, {"a": "z", "b": "y"}),
        (KNOWN, {"c": "z"}, {"a": "x", "b": "y", "c": "z"}),
        (KNOWN, {"a": ""}, {"b": "y"}),
        (KNOWN, {"a": " ", "b": "z"}, {"b": "z"}),
    ],
)
def test_fields_that_are_known_stay_and_an_empty_expression_drops_one(known, asked, wanted):
    assert wanted_fields(known, asked) == wanted


ZONE, ANSI = "spark.sql.session.timeZone", "spark.sql.ansi.enabled"


@pytest.mark.parametrize(
    ("conf", "home", "is_so"),
    [
        ({"spark.ui.enabled": "true"}, "spark-core_2.13-4.0.0.jar", True),
        ({ZONE: "UTC", ANSI: "True"}, "spark-core_2.13-4.0.0.jar", True),
        ({ZONE: "Asia/Tokyo"}, "spark-core_2.13-4.0.0.jar", False),
        ({ANSI: "false"}, "spark-core_2.13-4.0.0.jar", False),
        ({}, "spark-core_2.12-4.0.0-amzn-1.jar", False),
        ({}, "nothing.jar", False),
    ],
)
def test_fields_are_built_anew_where_they_would_be_computed_in_another_way(tmp_path, monkeypatch, conf, home, is_so):
    claims = {name: FieldClaim("x", "UTC", True, "4.0.0", 7, 20) for name in ("a", "b")}
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / home).touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert is_computed_so(replace(KNOWN, fields=claims), conf) == is_so
    assert is_computed_so(replace(KNOWN, fields={}), conf)
    amazons = {"a": replace(claims["a"], spark="4.0.0-amzn-1")}
    assert is_computed_so(replace(KNOWN, fields=amazons), {}) == ("amzn" in home)
    monkeypatch.delenv("SPARK_HOME")
    assert not is_computed_so(replace(KNOWN, fields=claims), conf)  # with the Spark that is installed


@pytest.mark.parametrize("asked", [{"A": "x"}, {"../a": "x"}, {"c": ""}, {"": "x"}])
def test_what_can_be_no_field_is_wrong_use(asked):
    with pytest.raises(UsageError):
        wanted_fields(KNOWN, asked)
    with pytest.raises(WhenceError):
        wanted_fields(replace(KNOWN, fields={}), asked)
