"""The follower: whatever it is given at a time, and whatever is killed, it leaves the files of one build."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import whence
from tests.crash.following import Killed, Made, StepDisk, killing, made_files, random_messages, steps, write_log
from tests.disks import PowerLossDisk, UnflushedDisk
from tests.lookup.judge import Judge, offsets
from tests.reference import Record, encode_blank
from tests.store_maker import T, message, place
from whence.errors import StoreError
from whence.files.names import sidecar_of
from whence.pipeline.jobs import settled
from whence.store.commit_log import CommitLog
from whence.store.index_file import Shape
from whence.store.message_store import Dialect
from whence.store.old_files import old_index_files, old_queue_files
from whence.store.sidecar import read_sidecar
from whence.store.spill import Spilled

SEEDS = 20
FILE_SIZE = 16_384


@pytest.fixture(autouse=True)
def unflushed(monkeypatch):
    """A build flushes, too, and nothing here waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)


class Scenario:
    """A log and how it is followed, by a number."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random = Random(seed)
        self.seed = seed
        self.store = folder / str(seed) / "store"
        self.sidecar = sidecar_of(self.store)
        self.file_size = random.choice([4096, FILE_SIZE, 3 * 65_536])
        self.made = Made(Shape(random.choice([1, 7, 31]), random.choice([2, 3, 9, 50])), random.choice(list(Dialect)))
        count = random.choice([1, 5, 40, 150])
        self.records = place(random_messages(random, count), file_size=self.file_size)

    def grow(self, count: int | None = None) -> list[Record]:
        """Let the log have so many records; all, if None."""
        write_log(self.store, self.records[:count], file_size=self.file_size)
        return self.records[:count]

    def follow(self, disk=None) -> None:
        self.made.follow(self.store, self.sidecar, self.random, disk)

    def build(self) -> None:
        """Let a build put right what a killed follower left, and go on with it."""
        known, log = read_sidecar(self.sidecar), CommitLog(self.store / "commitlog")
        if known is not None and known.growing:
            assert not settled(self.store, log, self.sidecar, known, UnflushedDisk()).growing
        log.close()
        self.made.build_on(self.store, self.sidecar)

    def check(self) -> None:
        """All files are those of a build."""
        expected = self.made.build(self.store, self.store.parent / "built")
        found = made_files(self.sidecar)
        differing = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        assert not differing, (self.seed, differing, self.made)
        claim = read_sidecar(self.sidecar)
        built = read_sidecar(self.store.parent / "built")
        assert claim is not None and built is not None
        for name in ("indexed", "index_names", "newest_header", "last_record_offset", "last_record", "queues_size"):
            assert getattr(claim, name) == getattr(built, name), (self.seed, name)
        assert not claim.growing

    def check_reader(self, reader: whence.Store, records: list[Record], asked: int = 3) -> None:
        """Every answer is that of a look at all messages."""
        judge = Judge(records)
        keys = ["shared", "no-such-key", *judge.by_key]
        for key in self.random.sample(keys, min(len(keys), asked)):
            answer = reader.find(key=key, limit=None)
            assert offsets(answer) == judge.by_key.get(key, []), (self.seed, key, answer.receipt)
            assert answer.receipt.complete and not answer.receipt.damage, (self.seed, answer.receipt)
        asked_keys = self.random.sample(keys, min(len(keys), asked))
        many = reader.answer_many(asked_keys, spark=False)
        found: dict[str, list[int]] = {}
        for row in many.table.to_pylist():
            found.setdefault(row["key"], []).append(row["physical_offset"])
        wanted = {key: judge.by_key[key] for key in asked_keys if key in judge.by_key}
        assert found == wanted, (self.seed, many.receipt)
        since = T + self.random.choice([0, 1, 5, 1000, 5000])
        until = since + self.random.choice([0, 1, 1000])
        answer = reader.find(since=since, until=until, limit=None)
        assert offsets(answer) == judge.window(since, until), (self.seed, since, until, answer.receipt)


@pytest.mark.parametrize("seed", range(0, SEEDS, 5))
def test_any_cut_of_the_log_gives_the_files_of_one_build(tmp_path, seed):
    for each in range(seed, seed + 5):
        scenario = Scenario(tmp_path, each)
        for _ in range(scenario.random.randint(0, 5)):
            scenario.grow(scenario.random.randint(0, len(scenario.records)))
            scenario.follow()
        scenario.grow()
        scenario.follow()
        scenario.check()


def kill_once(scenario: Scenario, count: int | None) -> bool:
    """Follow until a random step; whether it was killed before it ended."""
    scenario.grow(count)
    try:
        scenario.follow(killing(scenario.random.randint(1, scenario.random.choice([10, 60, 400]))))
    except Killed:
        return True
    return False


@pytest.mark.parametrize("seed", range(0, SEEDS, 5))
def test_whatever_is_killed_the_files_of_one_build_result(tmp_path, seed):
    killed = 0
    for each in range(seed, seed + 5):
        scenario = Scenario(tmp_path, 1000 + each)
        counts = sorted(scenario.random.randint(0, len(scenario.records)) for _ in range(5))
        killed += sum(kill_once(scenario, count) for count in counts)
        scenario.grow()
        if each % 2:
            scenario.build()
        else:
            scenario.follow()
        scenario.check()
    assert killed


def lose_power(scenario: Scenario) -> None:
    """The power fails while a log is followed, once or twice."""
    for turn in range(scenario.random.randint(1, 2)):
        scenario.grow(scenario.random.randint(0, len(scenario.records)))
        scenario.sidecar.mkdir(exist_ok=True)
        write_back = scenario.random.choice([0.0, 0.0, 0.02, 0.3])
        disk = PowerLossDisk(scenario.sidecar, Random(scenario.random.randrange(2**32)), write_back=write_back)
        left = scenario.store.parent / f"left{turn}"
        disk.fail_after(scenario.random.randrange(scenario.random.choice([10, 60, 300])), left)
        scenario.follow(disk)
        if not disk.has_failed:
            disk.fail(left)
        shutil.rmtree(scenario.sidecar)
        left.rename(scenario.sidecar)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, SEEDS, 5))
def test_whenever_the_power_fails_the_files_of_one_build_result(tmp_path, seed):
    for each in range(seed, seed + 5):
        scenario = Scenario(tmp_path, 2000 + each)
        lose_power(scenario)
        records = scenario.grow()
        with whence.open(scenario.store) as reader:
            for key, expected in Judge(records).by_key.items():
                assert offsets(reader.find(key=key, limit=None)) == expected, scenario.seed
        scenario.follow()
        scenario.check()
        with whence.open(scenario.store) as reader:
            scenario.check_reader(reader, records, asked=1000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, SEEDS, 5))
def test_readers_are_right_between_any_two_steps(tmp_path, seed):
    for each in range(seed, seed + 5):
        scenario = Scenario(tmp_path, 3000 + each)
        scenario.records = scenario.records[:60]
        scenario.sidecar.parent.mkdir(parents=True)
        scenario.sidecar.mkdir()
        log = [scenario.grow(scenario.random.randint(1, len(scenario.records)))]
        with whence.open(scenario.store) as stays:

            def look(step: int, scenario=scenario, stays=stays, log=log) -> None:
                if scenario.random.random() < 0.3:
                    scenario.check_reader(stays, log[0])
                if scenario.random.random() < 0.1:
                    with whence.open(scenario.store) as opened:
                        scenario.check_reader(opened, log[0])

            scenario.follow(StepDisk(look))
            kill_once(scenario, len(log[0]))
            log[0] = scenario.grow()
            scenario.follow(StepDisk(look))
            scenario.check_reader(stays, log[0], asked=1000)


@pytest.mark.parametrize("seed", range(0, 20, 5))
def test_a_log_that_was_cut_and_written_anew_is_followed_as_if_it_always_had_been_so(tmp_path, seed):
    for each in range(seed, seed + 5):
        scenario = Scenario(tmp_path, 4000 + each)
        scenario.grow()
        follower, log = scenario.made.follower(scenario.store, scenario.sidecar)
        assert follower.check()
        steps(follower, log, scenario.random, scenario.made.dialect, scenario.sidecar)
        kept = scenario.random.randint(0, len(scenario.records))
        other = random_messages(scenario.random, scenario.random.randint(0, 40))
        later = [replace(record, born_timestamp_ms=record.born_timestamp_ms + 7) for record in other]
        scenario.records = place([*scenario.records[:kept], *later], file_size=scenario.file_size)
        records = scenario.grow()
        if not records:
            continue
        is_running = scenario.random.random() < 0.5
        if is_running:
            assert follower.check()
            steps(follower, log, scenario.random, scenario.made.dialect, scenario.sidecar)
        follower.close()
        log.close()
        scenario.follow()
        scenario.check()
        with whence.open(scenario.store) as reader:
            scenario.check_reader(reader, records)


@pytest.mark.parametrize("kept", [6, 12])
def test_a_recovery_from_a_cut_that_is_killed_at_any_step_is_made_again(tmp_path, kept):
    """Of a log whose head has expired, and whose index has two files: the cut is in the first, or in the second.

    The file that it cuts has fewer items then than are noted.
    """
    scenario = Scenario(tmp_path, 6100)
    scenario.file_size, scenario.made = 4096, Made(Shape(7, 20))
    placed = place([message(keys="a b", topic="T", queue=0, at=at) for at in range(60)], file_size=4096)
    scenario.records = [record for record in placed if record.physical_offset >= 4096][:15]
    for count in (6, 9, 13, 15):  # of the last message of each it is noted where it ends
        scenario.grow(count)
        scenario.follow()
    assert len(list((scenario.sidecar / "index").iterdir())) == 2
    followed = tmp_path / "followed"
    shutil.copytree(scenario.sidecar, followed)
    scenario.grow(kept)
    expected = scenario.made.build(scenario.store, tmp_path / "built")
    is_killed, at = True, 0
    while is_killed:
        shutil.rmtree(scenario.sidecar)
        shutil.copytree(followed, scenario.sidecar)
        at += 1
        try:
            scenario.follow(killing(at))
            is_killed = False
        except Killed:
            scenario.follow()
        assert made_files(scenario.sidecar) == expected, at
    assert at > 20


@pytest.mark.parametrize("seed", range(0, 12, 4))
def test_what_leads_to_expired_messages_goes_with_them(tmp_path, seed):
    gone = set()
    for each in range(seed, seed + 4):
        scenario = Scenario(tmp_path, 5000 + each)
        scenario.file_size = 4096
        scenario.records = place(random_messages(scenario.random, 150), file_size=4096)
        scenario.grow(120)
        follower, log = scenario.made.follower(scenario.store, scenario.sidecar)
        assert follower.check()
        steps(follower, log, scenario.random, scenario.made.dialect, scenario.sidecar)
        before = made_files(scenario.sidecar)
        base = scenario.random.choice(log.bases[1:-1])
        scenario.records = [record for record in scenario.records if record.physical_offset >= base]
        records = scenario.grow()
        if scenario.random.random() < 0.5:
            follower.close()
            log.close()
            follower, log = scenario.made.follower(scenario.store, scenario.sidecar)
        with whence.open(scenario.store) as stays:
            assert follower.check()
            scenario.check_reader(stays, records)
            steps(follower, log, scenario.random, scenario.made.dialect, scenario.sidecar)
            follower.close()
            scenario.check_reader(stays, records, asked=1000)
        log.close()
        claim = read_sidecar(scenario.sidecar)
        assert claim is not None
        assert sorted(path.name for path in (scenario.sidecar / "index").iterdir()) == sorted(claim.index_names)
        assert min(int(path.name) for path in (scenario.sidecar / "times").iterdir()) == base
        for old_files in (old_index_files, old_queue_files):
            assert old_files(scenario.sidecar, base)[0] == []
        gone |= {name.split("/")[0] for name in before.keys() - made_files(scenario.sidecar).keys()}
        assert scenario.made.build_on(scenario.store, scenario.sidecar).messages == 0
    assert gone == {"index", "consumequeue", "times"}


@pytest.mark.parametrize("seed", range(0, 12, 4))
def test_a_file_that_comes_into_the_log_late_is_indexed_too(tmp_path, seed):
    for each in range(seed, seed + 4):
        scenario = Scenario(tmp_path, 7000 + each)
        scenario.file_size = 4096
        scenario.records = place(random_messages(scenario.random, 150), file_size=4096)
        records = scenario.grow()
        files = sorted((scenario.store / "commitlog").iterdir())
        late = scenario.random.sample(files[:-1], scenario.random.randint(1, 3))
        bytes_of = {path: path.read_bytes() for path in late}
        for path in late:
            path.unlink()
        scenario.follow()
        scenario.check()
        follower, log = scenario.made.follower(scenario.store, scenario.sidecar)
        assert follower.check()
        for path, data in bytes_of.items():
            path.write_bytes(data)
            if scenario.random.random() < 0.5:
                assert follower.check()
        if scenario.random.random() < 0.5:
            follower.close()
            log.close()
            follower, log = scenario.made.follower(scenario.store, scenario.sidecar)
        assert follower.check()
        steps(follower, log, scenario.random, scenario.made.dialect, scenario.sidecar)
        follower.close()
        log.close()
        scenario.check()
        with whence.open(scenario.store) as reader:
            scenario.check_reader(reader, records)


def test_a_file_of_which_nothing_can_be_read_is_not_taken_for_one_that_comes_late(tmp_path):
    scenario = Scenario(tmp_path, 7100)
    scenario.file_size = 4096
    scenario.records = place(random_messages(scenario.random, 150), file_size=4096)
    scenario.grow()
    (scenario.store / "commitlog" / f"{4096:020d}").write_bytes(bytes(4096))
    scenario.follow()
    claim = read_sidecar(scenario.sidecar)
    assert claim is not None and [begin for begin, _ in claim.indexed] == [0, 8192]
    follower, log = scenario.made.follower(scenario.store, scenario.sidecar)
    for _ in range(2):
        assert follower.check()
        assert follower.end_offset == claim.indexed_to
    log.close()


@pytest.mark.parametrize("data", [encode_blank(4096), b"\xff" * 4096, bytes(4096)], ids=["blank", "damage", "zeros"])
@pytest.mark.parametrize("seed", [0, 1, 2, 19])
def test_files_of_the_log_without_a_record_have_time_blocks_without_an_entry(tmp_path, data, seed):
    scenario = Scenario(tmp_path, 7300 + seed)
    scenario.file_size, random = 4096, scenario.random
    scenario.records = place(random_messages(random, 100), file_size=4096)
    bare = random.choice([[0], [1], [2, 3], [0, 1, 4]])
    ends = [at for at, record in enumerate(scenario.records, 1) if record.physical_offset // 4096 not in bare]
    for count in sorted(random.sample(ends, 4)):
        scenario.grow(count)
        for number, path in enumerate(sorted((scenario.store / "commitlog").iterdir())):
            if number in bare:
                path.write_bytes(data)
        try:
            scenario.follow(killing(random.randint(1, 80)))
        except Killed:
            scenario.follow()
        scenario.check()


def test_what_is_told_is_told_again_if_it_was_removed(tmp_path):
    scenario = Scenario(tmp_path, 7200)
    scenario.grow()
    follower, log = scenario.made.follower(scenario.store, scenario.sidecar)
    for removed in (False, True, True):
        if removed:
            (scenario.sidecar / "sidecar.json").unlink()
        assert follower.check()
        steps(follower, log, scenario.random, scenario.made.dialect, scenario.sidecar)
    follower.close()
    log.close()
    scenario.check()


@pytest.mark.parametrize("is_folder_gone", [False, True])
def test_a_log_without_files_is_waited_for_and_nothing_is_thrown_away(tmp_path, is_folder_gone):
    scenario = Scenario(tmp_path, 6000)
    records = scenario.grow()
    follower, log = scenario.made.follower(scenario.store, scenario.sidecar)
    assert follower.check()
    steps(follower, log, scenario.random, scenario.made.dialect, scenario.sidecar)
    before = made_files(scenario.sidecar)
    away = scenario.store / "away"
    (scenario.store / "commitlog").rename(away)
    if not is_folder_gone:
        (scenario.store / "commitlog").mkdir()
    assert not follower.check()
    assert made_files(scenario.sidecar) == before
    if not is_folder_gone:
        (scenario.store / "commitlog").rmdir()
    away.rename(scenario.store / "commitlog")
    assert follower.check()
    assert follower.claim.indexed_to == records[-1].physical_offset + records[-1].size
    follower.close()
    log.close()
    scenario.check()


def test_a_sidecar_that_was_made_otherwise_is_made_anew(tmp_path):
    scenario = Scenario(tmp_path, 6001)
    scenario.grow()
    scenario.follow()
    for change in ("shape", "dialect", "queue", "times", "first times", "index"):
        if change == "shape":
            scenario.made = replace(scenario.made, shape=Shape(11, 13))
        elif change == "dialect":
            scenario.made = replace(scenario.made, dialect=Dialect.V4_9)
        elif change == "queue":
            shutil.rmtree(next((scenario.sidecar / "consumequeue").glob("*/*")))
        elif change == "times":
            shutil.rmtree(scenario.sidecar / "times")
        elif change == "first times":
            min((scenario.sidecar / "times").iterdir()).unlink()
        else:
            min((scenario.sidecar / "index").iterdir()).unlink()
        scenario.follow()
        scenario.check()


def test_a_log_of_which_no_record_is_said_to_be_indexed_is_followed_from_its_first(tmp_path):
    scenario = Scenario(tmp_path, 6004)
    scenario.grow()
    scenario.sidecar.mkdir()
    nothing = scenario.made.follower(scenario.store, scenario.sidecar)[0].claim
    replace(nothing, indexed=((0, 100),)).write(scenario.sidecar, UnflushedDisk())
    scenario.follow()
    scenario.check()


@pytest.mark.parametrize("further", [100, 1500, 200_000])
def test_an_end_that_the_log_does_not_have_is_not_believed(tmp_path, further):
    scenario = Scenario(tmp_path, 6003)
    scenario.file_size, scenario.made = 4096, Made(Shape(7, 20))
    scenario.records = place([message(keys=f"k{at}", topic="T", at=at) for at in range(60)], file_size=4096)
    scenario.grow(30)
    scenario.follow()
    claim = read_sidecar(scenario.sidecar)
    assert claim is not None
    replace(claim, indexed=((0, claim.indexed_to + further),)).write(scenario.sidecar, UnflushedDisk())
    scenario.follow()
    scenario.check()
    scenario.grow()
    scenario.follow()
    scenario.check()


@pytest.mark.parametrize("grows", [False, True])
def test_queues_of_the_other_kind_are_not_gone_on_with(tmp_path, grows):
    """Config tells that a topic's queues are batch queues, or are not any more."""
    scenario = Scenario(tmp_path, 6005)
    scenario.file_size = FILE_SIZE
    scenario.records = place(random_messages(scenario.random, 60), file_size=FILE_SIZE)
    batch_queues = scenario.sidecar / "batchconsumequeue"
    for batch_topics, count in ((("U",), 40), (("T",), 50), ((), 60)):
        scenario.made = replace(scenario.made, batch_topics=batch_topics)
        scenario.grow(count if grows else None)
        scenario.follow()
        scenario.check()
        assert {path.parents[1].name for path in batch_queues.glob("*/*/*")} == {*batch_topics}


def test_a_spill_of_another_part_of_the_log_is_refused(tmp_path):
    scenario = Scenario(tmp_path, 6002)
    scenario.grow()
    follower, log = scenario.made.follower(scenario.store, scenario.sidecar)
    assert follower.check()
    spilled = Spilled("x", 500, 600, 1, 1, 500, "", False, False, (), (), "")
    with pytest.raises(StoreError, match="offset 0 is to be indexed next, and not 500"):
        follower.put_spill(tmp_path, spilled)
    log.close()
