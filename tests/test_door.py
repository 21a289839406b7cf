"""The door: what ``whence.open`` takes, what it refuses, and what a store is to a program."""

import subprocess
import sys
from datetime import UTC, datetime

import pytest

import whence
from tests.lookup.judge import offsets
from tests.store_maker import T, make_store, message
from whence.door import open_stores

MESSAGES = [message(keys=f"k{number} every", topic="orders", tags="paid", at=number) for number in range(80)]


@pytest.fixture
def made(tmp_path):
    return make_store(tmp_path / "my store", MESSAGES)


class TestPlaces:
    def test_a_path_or_its_text(self, made):
        for place in (made.folder, str(made.folder), f"{made.folder}/"):
            with whence.open(place) as store:
                assert len(store.find(key="every", limit=None)) == 80

    @pytest.mark.parametrize("prefix", ["file://", "file://localhost"])
    def test_a_file_address(self, made, prefix):
        with whence.open(prefix + str(made.folder).replace(" ", "%20")) as store:
            assert len(store.find(key="k7")) == 1

    def test_a_path_from_the_working_folder(self, made, monkeypatch):
        monkeypatch.chdir(made.folder.parent)
        with whence.open("my store") as store:
            assert len(store.find(key="k7")) == 1

    @pytest.mark.parametrize("place", ["s3://bucket/store", "hdfs://host/store", "http://x/y", "file://host/store"])
    def test_other_addresses_are_refused(self, place):
        with pytest.raises(whence.UsageError, match="only paths and file://"):
            whence.open(place)

    def test_a_missing_folder_is_named(self, tmp_path):
        with pytest.raises(whence.NotFoundError, match="absent: there is no such folder"):
            whence.open(tmp_path / "absent")

    def test_a_file_is_no_store(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(whence.NotFoundError, match="is a file, and a store is a folder"):
            whence.open(tmp_path / "file")

    def test_a_folder_without_a_log_is_no_store_and_a_hint_may_help(self, made):
        with pytest.raises(whence.NotFoundError, match=r"no folder commitlog/$"):
            whence.open(made.folder / "index")
        with pytest.raises(whence.NotFoundError, match="give the folder above it"):
            whence.open(made.folder / "commitlog")
        (made.folder / "index" / "sidecar.json").touch()
        with pytest.raises(whence.NotFoundError, match="it is a sidecar: give the store"):
            whence.open(made.folder / "index")
        made.folder.rename(made.folder.parent / "store")
        with pytest.raises(whence.NotFoundError, match=r"did you mean .*/store\?"):
            whence.open(made.folder.parent)


class TestOptions:
    @pytest.mark.parametrize("given", [{"slots": 7}, {"items": 20}])
    def test_slots_and_items_go_together(self, made, given):
        with pytest.raises(whence.UsageError, match="go together"):
            whence.open(made.folder, **given)

    @pytest.mark.parametrize(("slots", "items"), [(0, 20), (-1, 20), (7, 1), (7, 0)])
    def test_they_are_counts(self, made, slots, items):
        with pytest.raises(whence.UsageError, match="at least 1 slot and 2 items"):
            whence.open(made.folder, slots=slots, items=items)

    @pytest.mark.parametrize("dialect", ["4.9", "5.3", "5.5"])
    def test_a_dialect_is_one_of_three(self, made, dialect):
        with whence.open(made.folder, dialect=dialect) as store:
            assert store.stores[0].dialect() == dialect

    @pytest.mark.parametrize("dialect", ["5.4", "", "rocketmq", "5"])
    def test_another_is_refused(self, made, dialect):
        with pytest.raises(whence.UsageError, match=r"not one of 4\.9, 5\.3, 5\.5"):
            whence.open(made.folder, dialect=dialect)

    def test_of_several_stores_each_must_be_one(self, made, tmp_path):
        with pytest.raises(whence.NotFoundError, match="absent"):
            open_stores([made.folder, tmp_path / "absent"])


class TestAsAProgramUsesIt:
    """The example of INTERFACE.md."""

    def test_find_iterate_and_go_on(self, made):
        with whence.open(made.folder) as store:
            answer = store.find(key="every", topic="orders", since="2023-01-01", limit=30)
            shown = [(found.store_time, found.body) for found in answer]
            assert shown[0] == (datetime.fromtimestamp((T + 79) / 1000, UTC), b"body")
            assert answer.receipt.complete
            rest = store.find(key="every", topic="orders", since="2023-01-01", limit=100, cursor=answer.cursor)
            assert offsets(answer) + offsets(rest) == made.offsets[::-1]

    def test_times_are_datetimes_texts_or_milliseconds(self, made):
        with whence.open(made.folder) as store:
            when = datetime.fromtimestamp((T + 7) / 1000, UTC)
            for since in (when, when.isoformat(), T + 7, str(T + 7)):
                assert offsets(store.find(key="every", since=since, until=T + 7)) == [made.offsets[7]]

    def test_a_limit_of_none_means_all(self, made):
        with whence.open(made.folder) as store:
            assert len(store.find(key="every")) == 64
            assert len(store.find(key="every", limit=None)) == 80

    def test_attributes_of_messages_have_the_json_names(self, made):
        with whence.open(made.folder) as store:
            answer = store.find(key="k7")
            [shown] = answer.to_dict()["messages"]
            [found] = answer
            for name in set(shown) - {"body", "body_encoding", "keys", "properties"}:
                assert getattr(found, name) == shown[name]
            for name, value in answer.receipt.to_dict().items():
                assert getattr(answer.receipt, name) == value

    def test_progress_is_told_while_a_log_is_scanned(self, made):
        told = []
        with whence.open(made.folder) as store:
            store.find(key="absent", scan=True, progress=lambda done, of: told.append((done, of)))
        assert told == sorted(told)
        assert told[-1] == (made.end_offset, made.end_offset)

    def test_topics_are_listed(self, made):
        with whence.open(made.folder) as store:
            assert store.topics() == ["orders"]

    def test_errors_are_kinds_of_one(self):
        for error in (whence.FormatError, whence.StoreError, whence.UsageError, whence.NotFoundError):
            assert issubclass(error, whence.WhenceError)

    def test_messages_outlive_the_store(self, made):
        with whence.open(made.folder) as store:
            [found] = store.find(key="k7")
        assert (found.keys, found.body, found.tags) == (("k7", "every"), b"body", "paid")

    def test_a_store_may_be_closed_twice(self, made):
        store = whence.open(made.folder)
        store.find(key="k7")
        store.close()
        store.close()

    def test_nothing_is_written_into_a_store_that_is_read(self, made):
        def state():
            return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in made.folder.rglob("*")}

        before = state()
        with whence.open(made.folder) as store:
            store.find(key="every")
            store.explain(key="k7", scan=True)
            store.find(topic="orders", queue=0, queue_offset=5)
        assert state() == before


LOADED = """
import sys, whence
with whence.open(sys.argv[1]) as store:
    assert len(store.find(key="k7")) == 1
    assert store.find(key="absent").receipt.complete
heavy = ("numba", "pyarrow", "pandas", "pyspark", "py4j", "rich", "llvmlite")
print(*(name for name in heavy if name in sys.modules))
"""


@pytest.mark.parametrize("indexed", [None, 0])
def test_a_lookup_of_one_key_loads_no_compiler_and_no_spark(tmp_path, indexed):
    """Also where a part of the log that is not indexed has to be scanned."""
    make_store(tmp_path / "store", MESSAGES, items=1000, indexed=indexed)
    run = subprocess.run(
        [sys.executable, "-c", LOADED, str(tmp_path / "store")], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == []


def test_everything_that_is_offered_is_there():
    assert all(hasattr(whence, name) for name in whence.__all__)
