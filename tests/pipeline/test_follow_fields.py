"""When a follower builds fields, and how much at a time: what comes of it is what one build makes."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.crash.following import Made
from tests.disks import UnflushedDisk
from tests.pipeline.field_builds import EXPRESSIONS, PlainEvaluator, build_fields, definition, field_of
from tests.pipeline.test_build import OneByOne
from tests.store_maker import QUEUE_FILE_SIZE, make_store, message
from whence.errors import StoreError, UsageError
from whence.formats.rocketmq.message import Message
from whence.pipeline import follow_fields, plan
from whence.pipeline.fields import FieldBuild, FieldSettings
from whence.pipeline.follow_fields import (
    FIELDS_AGAIN_S,
    FIELDS_S,
    FIELDS_SHARE,
    FieldsBuilt,
    FieldTurns,
    Publishing,
    is_behind,
)
from whence.pipeline.follow_puts import Puts
from whence.pipeline.follow_state import FollowMeter
from whence.store.commit_log import CommitLog
from whence.store.index_file import Shape
from whence.store.message_store import Dialect
from whence.store.sidecar import Sidecar, read_sidecar

SHAPE = Shape(7, 20)
SETTINGS = {"shape": SHAPE, "dialect": Dialect.V5_5, "queue_file_size": QUEUE_FILE_SIZE}
MESSAGES = [message(body=f"word {number} é".encode(), at=700 * number, keys=f"k{number}") for number in range(120)]
SIZE = 4 * 300  # bytes, of some messages


class Turns:
    """A follower at the end of its log, whose fields are of an earlier one, and how they come on."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.took_s = 0.0
        self.failure: str | None = None
        self.failing_at: int | None = None
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr(follow_fields, "SLOT_SIZE", SIZE // 2)
        self.made = make_store(folder / "store", MESSAGES)
        self.sidecar = folder / "store.whence"
        self.locked = True
        part = make_store(folder / "part", MESSAGES[:10])
        build_fields(part.folder, self.sidecar, definition("words"), definition("first"), **SETTINGS)
        Made(SHAPE).follow(self.made.folder, self.sidecar, Random(1))
        self.follower, self.log = Made(SHAPE).follower(self.made.folder, self.sidecar)
        self.meter = FollowMeter(CommitLog(self.made.folder / "commitlog"))
        log = CommitLog(self.made.folder / "commitlog")
        self.puts = Puts(self.follower, log, self.meter, lambda: self.locked)
        self.puts.begin()
        self.evaluator = PlainEvaluator(self.log, EXPRESSIONS | {"first": self.first})
        self.turns = FieldTurns(self.follower, self.puts, self.meter, self.sidecar, self.build, 2)

    def first(self, message: Message) -> Iterable[str]:
        if message.physical_offset == self.failing_at:
            raise UsageError(f"field first: its expression fails at {self.failing_at}")
        return EXPRESSIONS["first"](message)

    def build(
        self, claim: Sidecar, publishing: Publishing, turn_size: int | None, left: Collection[str]
    ) -> FieldsBuilt:
        self.now += self.took_s
        if self.failure is not None:
            raise StoreError(self.failure)
        how = FieldSettings(SHAPE, grows=True, turn_size=turn_size)
        build = FieldBuild(
            self.log, self.sidecar, how, claim, self.evaluator, OneByOne(), UnflushedDisk(), publishing=publishing
        )
        built = build.run([definition(name) for name in ("words", "first") if name not in left], kept=left)
        return built.sidecar, built.failures

    def take(self) -> int:
        """How far the least of the fields comes by a turn, if there is one."""
        before = self.claim()
        self.turns.take()
        return min(self.claim().fields[name].indexed_to - before.fields[name].indexed_to for name in before.fields)

    def claim(self) -> Sidecar:
        claim = read_sidecar(self.sidecar)
        assert claim is not None
        return claim

    def check_files(self) -> None:
        for name in ("words", "first"):
            assert field_of(self.sidecar, name) == self.expected(name)

    def expected(self, name: str) -> dict[str, bytes]:
        built = self.sidecar.with_name("built")
        shutil.rmtree(built, ignore_errors=True)
        build_fields(self.made.folder, built, definition(name), **SETTINGS)
        return field_of(built, name)


@pytest.fixture
def turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    monkeypatch.setattr(plan, "BLOCK_SIZE", 128)
    turns = Turns(tmp_path, monkeypatch)
    yield turns
    turns.log.close()


def test_what_is_missing_is_built_a_part_at_a_time_and_is_what_one_build_makes(turns):
    """Of fields that are as far, and of one that is built anew as after a change of Spark's version."""
    claim = turns.claim()
    replace(claim, fields=claim.fields | {"first": replace(claim.fields["first"], spark="3.5.0")}).write(
        turns.sidecar, UnflushedDisk()
    )
    turns.follower.take_fields(turns.claim())
    sizes, ends = [], {record.physical_offset + record.size for record in turns.made.records}
    while is_behind(turns.claim()):
        before = {name: field.indexed_to for name, field in turns.claim().fields.items()}
        turns.turns.take()
        after = turns.claim()
        assert {field.indexed_to for field in after.fields.values()} <= ends
        assert after.indexed == claim.indexed and after.last_record == claim.last_record
        assert turns.follower.claim.fields == after.fields
        sizes += [after.fields[name].indexed_to - before[name] for name in before]
    assert max(sizes) < SIZE + 300 and len(sizes) > 20
    turns.check_files()


def test_as_long_as_more_is_missing_the_next_turn_comes_with_the_next_batch(turns):
    turns.took_s = 2.0
    while is_behind(turns.claim()):
        assert turns.take() > 0
    turns.now += FIELDS_SHARE * turns.took_s - 0.1
    before = turns.now
    turns.turns.take()
    assert turns.now == before  # a tenth of the time, and no more
    turns.now += 0.2
    before = turns.now
    turns.turns.take()
    assert turns.now == before + turns.took_s
    turns.took_s = 0.0
    turns.now += 100
    turns.turns.take()
    turns.took_s = 1.0
    turns.now += FIELDS_S - 0.1
    before = turns.now
    turns.turns.take()
    assert turns.now == before  # nor more often than that


def test_at_the_end_all_that_is_missing_is_built(turns):
    turns.turns.finish()
    assert not is_behind(turns.claim())
    turns.check_files()


def test_fields_that_fail_are_tried_again_each_minute_and_the_index_goes_on(turns):
    turns.failure = "field words: no"
    assert turns.take() == 0
    assert turns.meter.field_failure == "field words: no"
    turns.failure = None
    turns.now += FIELDS_AGAIN_S - 1
    assert turns.take() == 0
    turns.now += 2
    assert turns.take() > 0
    assert turns.meter.field_failure is None


def test_a_field_that_fails_holds_up_no_other_and_is_tried_again_each_minute(turns):
    begin = turns.claim().fields["first"].indexed_to
    turns.failing_at = next(record.physical_offset for record in turns.made.records if record.physical_offset > begin)
    while is_behind(turns.claim(), {"first"}):
        before = turns.claim().fields["words"].indexed_to
        turns.turns.take()
        claim = turns.claim()
        assert claim.fields["words"].indexed_to > before and claim.fields["first"].indexed_to == begin
        assert turns.meter.field_failure == f"field first: its expression fails at {turns.failing_at}"
    assert field_of(turns.sidecar, "words") == turns.expected("words")
    tried = [name for name, _ in turns.evaluator.evaluated].count("first")
    for _ in range(3):
        turns.now += FIELDS_S + 1
        turns.turns.take()
    turns.turns.finish()
    assert [name for name, _ in turns.evaluator.evaluated].count("first") == tried
    assert "first" in str(turns.meter.field_failure)
    turns.failing_at = None
    turns.now += FIELDS_AGAIN_S
    turns.turns.finish()
    assert turns.meter.field_failure is None
    turns.check_files()


def test_an_end_in_the_midst_of_a_turn_leaves_what_was_there_and_is_no_failure(turns):
    before = turns.claim()
    evaluate = turns.evaluator.evaluate

    def evaluate_and_end(*given):
        turns.puts.end()
        return evaluate(*given)

    turns.evaluator.evaluate = evaluate_and_end
    assert turns.take() == 0
    assert turns.claim() == replace(before, growing=False)
    assert turns.meter.field_failure is None
    turns.evaluator.evaluated.clear()
    turns.turns.take()
    assert turns.evaluator.evaluated == []


def test_nothing_of_a_field_is_published_when_somebody_else_may_write_there(turns):
    before = turns.claim()
    turns.locked = False
    assert turns.take() == 0
    assert turns.claim() == before
    assert "was removed or replaced" in str(turns.meter.field_failure)
