"""What build and verify say in words. Their tasks run in this process."""

import json
import re

import pytest

import whence
from tests.pipeline.test_build import SMALL, build, grow, unflushed
from tests.pipeline.test_build_faults import begin_store, records
from tests.pipeline.test_repair import files_in, without_spark

__all__ = ["unflushed", "without_spark"]


@pytest.fixture
def store(tmp_path):
    return begin_store(tmp_path / "store", records(60))


@pytest.fixture
def told(here, tmp_path, monkeypatch):
    """The words of a command that is typed beside the store."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: " ".join(here(*arguments).out.split())


def test_a_build_beside_the_store_says_where_all_files_are(store, told):
    text = told("build", "store", "--slots", 7, "--items", 20)
    assert text.startswith("Indexed 60 messages under 180 keys, from offset 0 to ")
    assert re.search(r"\d+ index files, 6 queue files and \d time files were written to store\.whence\.$", text)


def test_a_build_in_place_says_which_files_are_in_the_store(store, told):
    text = told("build", "store", "--slots", 7, "--items", 20, "--in-place")
    assert re.search(r"\d+ index files and 6 queue files were written to store\.", text)
    assert re.search(r" \d time files were written to store\.whence\.$", text)


def test_a_build_of_a_store_of_our_own_says_that_it_made_time_blocks(told, tmp_path):
    with whence.create(tmp_path / "store", slots=7, items=20, file_size=65536) as made:
        for number in range(30):
            made.append("T", b"body", keys=[f"k{number}"])
    text = told("build", "store")
    assert text.startswith("Noted the times of 30 messages, from offset 0 to ")
    assert text.endswith(" 1 time file was written to store.whence.")


def test_verify_says_how_much_of_the_log_is_not_indexed_yet(store, told, tmp_path):
    build(store, tmp_path / "store.whence", **SMALL)
    assert "not indexed" not in told("verify", "store")
    grow(store, records(75))
    document = json.loads(told("verify", "store", "--json"))
    assert (document["healthy"], document["log"]["messages"]) == (True, 75)
    text = told("verify", "store")
    assert text.startswith("Healthy: log and indexes agree.")
    assert f"; 15 of them, from offset {document['judged_to_offset']} on, are not indexed yet" in text


def test_verify_counts_each_finding_once(store, told, tmp_path):
    grow(store, records(700))
    build(store, tmp_path / "store.whence", **SMALL)
    for path in files_in(tmp_path / "store.whence", "consumequeue"):
        path.write_bytes(bytes(path.stat().st_size))
    document = json.loads(told("verify", "store", "--json"))
    count = document["queues"]["missing"]
    assert count == 700 == len(document["damage"]) + document["unlisted"]
    text = told("verify", "store")
    assert text.startswith(f"Damaged: {count} findings.")
    assert document["unlisted"] > 0
    assert f"... and {document['unlisted']} findings that are counted, but not listed" in text
