"""``find_many`` by tasks gives the rows, the missing keys and the receipt that one process gives."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import whence
from tests.golden import FEW
from tests.lookup.test_find_many import MESSAGES, by_key
from tests.pipeline.test_build import OneByOne
from tests.reference import i32
from tests.store_maker import make_store, message
from whence.door import Store, open_stores
from whence.formats.hashing import key_hash
from whence.lookup import many_answer
from whence.lookup.asked_keys import read_keys
from whence.lookup.many_columns import POSITIONS
from whence.lookup.question import make_question
from whence.pipeline import many
from whence.pipeline.many import ManyOnSpark
from whence.store.damage import DamageKind

KEYS = [f"k{number}" for number in range(70)] + ["every", "k3"]


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    monkeypatch.setattr(many, "TASK_KEYS", 7)
    monkeypatch.setattr(many, "TASKS_PER_SLOT", 2)
    monkeypatch.setattr(many, "SCANNED_HERE", 500)


def by_tasks(store: Store, keys: Any, columns=POSITIONS, runner: OneByOne | None = None, **question):
    """Table, missing keys and receipt, as tasks give them."""
    missing: list[str] = []
    batches = ManyOnSpark(
        store.stores,
        make_question(0, **({"limit": None} | question)),
        read_keys(keys),
        columns,
        lambda array: missing.extend(array.to_pylist()),
        runner=runner or OneByOne(),
    )
    table = pa.Table.from_batches(list(batches), batches.schema)
    receipt = batches.receipt
    receipt.elapsed_us = 0
    return table, missing, receipt


def same_by_tasks(store: Store, keys: Any, columns=POSITIONS, **question):
    answer = store.answer_many(keys, columns=columns, spark=False, **question)
    answer.receipt.elapsed_us = 0
    table, missing, receipt = by_tasks(store, keys, columns, **question)
    assert table.equals(answer.table)
    assert missing == answer.missing.to_pylist()
    assert receipt == answer.receipt
    return receipt


@pytest.mark.parametrize("name", FEW)
def test_every_key_of_a_golden_store(golden, name, monkeypatch):
    monkeypatch.setattr(many, "TASK_KEYS", 100)
    known = golden(name)
    keys = [*dict.fromkeys(key for record in known.records for key in record.keys), "absent"]
    with whence.open(known.store) as store:
        for question in ({}, {"scan": True}, {"system_topics": True, "oldest_first": True, "limit": 2}):
            same_by_tasks(store, keys, **question)
        same_by_tasks(store, keys, ["keys", "tags", "properties", "body"])


@pytest.mark.parametrize("indexed", [None, 0, 31])
def test_questions_of_all_kinds(tmp_path, indexed):
    made = make_store(tmp_path / "store", MESSAGES, indexed=indexed)
    with whence.open(made.folder) as store:
        for question in ({}, {"topic": "T"}, {"tag": "odd"}, {"no_scan": True}, {"scan": True}, {"topic": "nowhere"}):
            same_by_tasks(store, KEYS, **question)
        same_by_tasks(store, ["absent", *(f"no-{number}" for number in range(20))])
        same_by_tasks(store, [])
    assert os.listdir(tmp_path) == ["store"]


def test_what_no_index_covers_is_scanned_once_for_all_keys(tmp_path):
    made = make_store(tmp_path / "store", MESSAGES, indexed=0, file_size=2048)
    runner = OneByOne()
    with whence.open(made.folder) as store:
        _, _, receipt = by_tasks(store, KEYS, runner=runner)
    assert runner.ran.count("scanning") == len(made.log_files)
    assert runner.ran.count("looking up keys") == -(-71 // 7)
    assert receipt.scanned_bytes == made.end_offset


def test_several_stores(tmp_path):
    first = make_store(tmp_path / "a", MESSAGES[::2], indexed=10)
    second = make_store(tmp_path / "b", MESSAGES[1::2])
    with open_stores([first.folder, second.folder]) as store:
        receipt = same_by_tasks(store, KEYS)
        same_by_tasks(store, KEYS, ["body", "keys"])
    assert len(receipt.logs) == 2


def test_several_stores_of_which_one_is_named_by_a_relative_path(tmp_path, monkeypatch):
    """Tasks may work elsewhere, and know an absolute one."""
    make_store(tmp_path / "a", MESSAGES[::2])
    second = make_store(tmp_path / "b", MESSAGES[1::2])
    monkeypatch.chdir(tmp_path)
    with open_stores(["a", second.folder]) as store:
        same_by_tasks(store, KEYS)
        table, _, _ = by_tasks(store, KEYS)
    assert set(table["store"].to_pylist()) == {"a", str(second.folder)}


def test_a_store_that_is_named_by_a_relative_path(tmp_path, monkeypatch):
    made = make_store(tmp_path / "store", MESSAGES, slots=3, items=30)
    cut = made.index_files[1]
    cut.write_bytes(cut.read_bytes()[:-7])
    monkeypatch.chdir(tmp_path)
    with whence.open("store") as store:
        receipt = same_by_tasks(store, KEYS)
    assert [damage.path for damage in receipt.damage] == [str(Path("store", "index", cut.name))]


class TestABrokenIndexFile:
    @pytest.fixture
    def made(self, tmp_path):
        """One that only the last keys meet."""
        made = make_store(tmp_path / "store", MESSAGES, slots=997, items=1000)
        [path] = made.index_files
        data = bytearray(path.read_bytes())
        at = 40 + 4 * (key_hash("T", "k59") % 997)
        data[at : at + 4] = i32(2**31 - 1)
        path.write_bytes(data)
        return made

    def test_is_done_without_by_all_tasks_of_a_job(self, made, monkeypatch):
        monkeypatch.setattr(many, "TASKS_PER_SLOT", 100)
        with whence.open(made.folder) as store:
            table, _, receipt = by_tasks(store, KEYS)
        with whence.open(made.folder) as store:
            answer = store.answer_many(KEYS)
        answer.receipt.elapsed_us = 0
        assert table.equals(answer.table)
        assert receipt == answer.receipt
        assert [damage.kind for damage in receipt.damage] == [DamageKind.BAD_CHAIN]
        assert receipt.complete

    def test_that_is_met_after_rows_were_given_makes_the_answer_incomplete(self, made):
        with whence.open(made.folder) as store:
            table, _, receipt = by_tasks(store, KEYS)
        assert len(table) == 120
        assert not receipt.complete
        assert receipt.damaged

    def test_makes_a_table_begin_anew(self, made, monkeypatch):
        """Through the door, where the rows are held until the answer is whole."""
        real = many.ManyOnSpark

        def one_by_one(*arguments, **named):
            return real(*arguments, **named, runner=OneByOne())

        monkeypatch.setattr(many, "ManyOnSpark", one_by_one)
        with whence.open(made.folder) as store:
            answer = store.answer_many(KEYS, spark=True)
        assert by_key(answer)["k59"] == [made.offsets[59]]
        assert len(answer) == 120
        assert answer.receipt.complete


@pytest.mark.slow
def test_a_log_that_grows_meanwhile_is_answered_up_to_where_it_was(tmp_path):
    class Growing(OneByOne):
        def map(self, name, task, inputs, *, size_of=None):
            if inputs and name == "looking up keys":
                writer.append("T", b"late", keys=["k1", "k2"])
            return super().map(name, task, inputs, size_of=size_of)

    with whence.create(tmp_path / "store") as writer:
        for number in range(30):
            writer.append("T", b"body", keys=[f"k{number}"])
        writer.wait_dispatched()
        with whence.open(tmp_path / "store") as store:
            end = store.stores[0].cover().end_offset
            table, _, receipt = by_tasks(store, KEYS, runner=Growing())
    assert table["key"].to_pylist() == [f"k{number}" for number in range(30)]
    assert (receipt.searched_to_offset, receipt.complete) == (end, True)


def test_spark_is_for_very_many_keys(monkeypatch):
    pytest.importorskip("pyspark")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    keys = list(read_keys(f"key-{number}" for number in range(100)))
    assert many_answer.is_for_spark(keys)[1] is False
    monkeypatch.setattr(many_answer, "SPARK_KEYS", 100)
    pieces, is_for_spark = many_answer.is_for_spark(iter(keys))
    assert is_for_spark
    assert list(pieces) == keys
    monkeypatch.setattr(many_answer, "SPARK_KEYS", 101)
    assert many_answer.is_for_spark(keys)[1] is False
    assert many_answer.is_for_spark([*keys, *keys])[1] is True
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert many_answer.is_for_spark([*keys, *keys])[1] is False


def test_work_leaves_nothing_behind_in_a_sidecar(tmp_path):
    made = make_store(tmp_path / "store", [message(keys="k1")])
    sidecar = tmp_path / "store.whence"
    sidecar.mkdir()
    with whence.open(made.folder) as store:
        by_tasks(store, KEYS)
    assert list(sidecar.iterdir()) == []
