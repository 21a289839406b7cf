"""whence expire: what it takes, what it says, and what it leaves."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.disks import UnflushedDisk
from tests.files.test_lock import held_by_another
from tests.reference import encode_record
from tests.store.expiring import MESSAGES, names_below, set_time
from tests.store_maker import FILE_SIZE, MadeStore, make_store
from whence.store.ownership import Flushed, Ownership, Settings

MEMBERS = [
    "store", "archive", "dry_run", "begin_offset", "bytes", "log_files", "queue_files", "index_files", "copied_files",
]  # fmt: skip


@pytest.fixture
def made(tmp_path) -> MadeStore:
    """A store of seven log files, of which three were finished four days ago, and the others just now."""
    made = make_store(tmp_path / "store", MESSAGES, items=80)
    for number, path in enumerate(made.log_files):
        set_time(path, int(time.time() * 1000) - (4 * 86_400_000 if number < 3 else 0))
    return made


def own(made: MadeStore) -> None:
    """Note in a store that whence made it, and that all of it is dispatched."""
    last = made.records[-1]
    flushed = Flushed(made.end_offset, made.end_offset, last.physical_offset, encode_record(last)[:48])
    Ownership(Settings(file_size=FILE_SIZE, queue_file_size=200), flushed).write(made.folder, UnflushedDisk())


def test_old_files_are_removed_and_told(whence, made):
    own(made)
    before = names_below(made.folder)
    ran = whence("expire", made.folder, "--older-than", "72h")
    assert (ran.status, ran.err) == (0, "")
    gone = before - names_below(made.folder)
    queues, indexes = (sum(name.startswith(kind) for name in gone) for kind in ("consumequeue", "index"))
    assert queues and indexes
    assert ran.out.splitlines()[1].split()[:2] == [f"commitlog/{0:020}", "4096"]
    assert ran.out.splitlines()[-2].startswith(f"3 log files, {queues} queue files and {indexes} index files, ")
    assert ran.out.splitlines()[-1] == f"The log begins at offset {3 * FILE_SIZE}; it began at 0."
    found = whence("find", made.folder, "--key", "every", "--all", "--json")
    assert len(json.loads(found.out)["messages"]) == sum(offset >= 3 * FILE_SIZE for offset in made.offsets)


def test_a_dry_run_says_the_same_and_changes_nothing(here, made):
    before = names_below(made.folder)
    planned = here("expire", made.folder, "--older-than", "3d", "--dry-run", "--json")
    told = here("expire", made.folder, "--older-than", "3d", "--dry-run")
    assert (planned.status, told.status) == (0, 0)
    assert names_below(made.folder) == before
    assert told.out.endswith(
        f"would go.\nThe log would begin at offset {3 * FILE_SIZE}; it began at 0.\n"
        "This was a dry run: nothing was changed.\n"
    )
    done = here("expire", made.folder, "--older-than", "3d", "--in-place", "--json")
    assert json.loads(planned.out) == {**json.loads(done.out), "dry_run": True}


def test_json_has_the_agreed_members(here, made):
    ran = here("expire", made.folder, "--older-than", "72h", "--in-place", "--json")
    document = json.loads(ran.out)
    assert list(document) == MEMBERS
    assert document["begin_offset"] == {"before": 0, "after": 3 * FILE_SIZE}
    assert document["log_files"] == [f"commitlog/{number * FILE_SIZE:020}" for number in range(3)]
    assert (document["dry_run"], document["archive"], document["copied_files"]) == (False, None, [])
    assert not any((made.folder / name).exists() for name in document["log_files"] + document["index_files"])


def test_nothing_to_expire_is_said_and_no_error(here, made):
    own(made)
    for _ in range(2):
        ran = here("expire", made.folder, "--older-than", "30d")
        assert (ran.status, ran.err) == (0, "")
        assert ran.out.startswith("Nothing to expire: no log file but the last is older than 30d")
    document = json.loads(here("expire", made.folder, "--older-than", "30d", "--json").out)
    assert (document["log_files"], document["bytes"]) == ([], 0)


def test_by_record_a_copy_is_as_old_as_its_messages(here, made):
    for path in made.log_files:
        set_time(path, int(time.time() * 1000))
    own(made)
    assert "Nothing" in here("expire", made.folder, "--older-than", "72h").out
    document = json.loads(here("expire", made.folder, "--older-than", "72h", "--by", "record", "--json").out)
    assert len(document["log_files"]) == 6


def test_an_archive_is_a_store_that_answers(here, made, tmp_path):
    own(made)
    archive = tmp_path / "archive"
    ran = here("expire", made.folder, "--older-than", "72h", "--archive", archive)
    assert ran.status == 0
    assert f"moved to {archive}." in " ".join(ran.out.split())
    assert "files with older and newer parts stay; the older parts were copied." in ran.out
    found = here("find", archive, "--key", "k3", "--json")
    receipt = json.loads(found.out)["receipt"]
    assert (found.status, receipt["complete"], receipt["scanned_bytes"], receipt["damage"]) == (0, True, 0, [])
    both = json.loads(here("find", archive, made.folder, "--key", "every", "--all", "--json").out)
    assert [message["physical_offset"] for message in both["messages"]] == made.offsets[::-1]
    assert both["receipt"]["complete"]
    gone = here("find", made.folder, "--key", "k3", "--json")
    assert (gone.status, json.loads(gone.out)["messages"]) == (1, [])


def test_a_dry_run_makes_no_archive(here, made, tmp_path):
    ran = here("expire", made.folder, "--older-than", "72h", "--archive", tmp_path / "archive", "--dry-run")
    assert "would go to" in ran.out and "the older parts are copied" in ran.out
    assert not (tmp_path / "archive").exists()


def test_a_store_that_whence_did_not_make_needs_in_place(here, made):
    before = names_below(made.folder)
    ran = here("expire", made.folder, "--older-than", "72h")
    assert (ran.status, ran.out) == (2, "")
    assert "is not a store that whence made" in ran.err and "--in-place" in ran.err
    assert names_below(made.folder) == before
    assert here("expire", made.folder, "--older-than", "72h", "--in-place").status == 0


def test_a_store_that_a_broker_holds_is_left_alone(here, made):
    own(made)
    before = names_below(made.folder)
    child = held_by_another(made.folder / "lock")
    try:
        ran = here("expire", made.folder, "--older-than", "72h")
    finally:
        child.kill()
        child.wait()
    assert (ran.status, ran.out) == (2, "")
    assert f"process {child.pid} holds this store" in ran.err
    assert names_below(made.folder) == before | {"lock"}
    assert here("expire", made.folder, "--older-than", "72h").status == 0


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ((), "--older-than"),
        (("--older-than", "72"), "'72' is no age"),
        (("--older-than", "2026-01-01"), "is no age"),
        (("--older-than", "72h", "--by", "name"), "invalid choice"),
        (("--older-than", "72h", "--archive", "{}/inside"), "cannot lie in its store"),
        (("--older-than", "72h", "--archive", "s3://bucket/archive"), "only paths and file://"),
        (("--older-than", "72h", "--log-file", "{}/log"), "which is only read"),
    ],
)
def test_wrong_use_is_told_in_one_line(here, made, typed, says):
    own(made)
    before = names_below(made.folder)
    ran = here("expire", made.folder, *(word.format(made.folder) for word in typed))
    assert (ran.status, ran.out) == (2, "")
    assert says in ran.err and ran.err.count("\n") == 1
    assert names_below(made.folder) - {"lock"} == before


def test_what_is_no_store_is_told(here, tmp_path):
    assert "there is no such folder" in here("expire", tmp_path / "nowhere", "--older-than", "1d").err
    assert "is no RocketMQ store" in here("expire", tmp_path, "--older-than", "1d").err


def test_many_log_files_are_not_all_listed(here, tmp_path):
    made = make_store(tmp_path / "store", MESSAGES, file_size=1024)
    for path in made.log_files:
        set_time(path, 0)
    ran = here("expire", made.folder, "--older-than", "72h", "--dry-run")
    assert f"... and {len(made.log_files) - 1 - 20} more; --json has them all" in ran.out


def test_an_archive_may_be_an_address(here, made, tmp_path):
    ran = here("expire", made.folder, "--older-than", "72h", "--in-place", "--archive", f"file://{tmp_path}/archive")
    assert ran.status == 0
    assert len(list(Path(tmp_path, "archive", "commitlog").iterdir())) == 3
    assert os.listdir(tmp_path / "archive" / "index")
