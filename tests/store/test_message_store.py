"""MessageStore: one store folder; its topics, queues, small files, and the version that wrote its index."""

import json
import shutil
from dataclasses import replace

import pytest

from tests.golden import ALL, ANSWERED, DIRECT
from tests.reference import build_index
from tests.store_maker import T, make_store, message, write_index
from whence.errors import NotFoundError, StoreError, TruncatedError
from whence.formats.rocketmq.checkpoint import CHECKPOINT_SIZE
from whence.store.message_store import Dialect, MessageStore


class TestGolden:
    @pytest.mark.parametrize("name", ALL)
    def test_the_version_that_wrote_the_index_is_recognised(self, golden, opened, name):
        assert opened(name).dialect() == golden(name).dialect

    @pytest.mark.parametrize("name", ALL)
    def test_the_checkpoint_is_as_rocketmq_reads_it(self, golden, opened, name):
        checkpoint, known = opened(name).checkpoint(), golden(name).checkpoint
        assert (
            checkpoint.log_timestamp_ms,
            checkpoint.queue_timestamp_ms,
            checkpoint.index_timestamp_ms,
            checkpoint.master_flushed_offset,
            checkpoint.confirm_offset,
            checkpoint.queue_physical_offset,
        ) == (
            known["physicMsgTimestamp"],
            known["logicsMsgTimestamp"],
            known["indexMsgTimestamp"],
            known.get("masterFlushedOffset", 0),
            known.get("confirmPhyOffset", 0),
            known.get("logicsPhysicalOffset", 0),
        )

    @pytest.mark.parametrize("name", ALL)
    def test_every_topic_of_the_log_is_known(self, golden, opened, name):
        queued = {record.topic for record in golden(name).records if record.sys_flag & 0xC in (0, 8)}
        assert queued <= opened(name).topics()

    @pytest.mark.parametrize("name", ANSWERED)
    def test_every_queue_of_the_log_is_known(self, golden, opened, name):
        for known in golden(name).queue_ranges:
            if known["max_offset"]:
                assert known["queue_id"] in opened(name).queues(known["topic"])

    @pytest.mark.parametrize("name", sorted(set(ALL) - set(DIRECT)))  # without a broker there is no config
    def test_config_files_are_read(self, golden, opened, name):
        for path in (golden(name).store / "config").glob("*.json"):
            assert isinstance(opened(name).config(path.name), dict)
        assert "topicConfigTable" in opened(name).config("topics.json")

    @pytest.mark.parametrize("name", ALL)
    def test_candidates_hold_every_message_that_the_index_files_cover(self, golden, opened, name):
        store = opened(name)
        covered = [(s.from_offset, s.to_offset) for s in store.cover().segments if s.file is not None]
        wanted: dict[tuple[str, str], set[int]] = {}
        for record in golden(name).records:
            if any(begin <= record.physical_offset < end for begin, end in covered):
                for key in record.keys:
                    wanted.setdefault((record.topic, key), set()).add(record.physical_offset)
        assert wanted
        for (topic, key), offsets in wanted.items():
            assert offsets <= set(store.candidates(topic, key))


def test_a_folder_without_a_commitlog_is_no_store(tmp_path):
    with pytest.raises(NotFoundError, match="no folder commitlog"):
        MessageStore(tmp_path)


def test_the_version_is_as_asked_if_one_is_asked_for(golden):
    with MessageStore(golden("v5-clean").store, dialect=Dialect.V4_9) as store:
        assert store.dialect() is Dialect.V4_9


@pytest.mark.parametrize(("dialect", "shown"), [("4.9", "4.9"), ("5.3", "5.3"), ("5.5", "5.5")])
def test_the_version_shows_in_tag_items_and_in_the_end_of_properties(tmp_path, dialect, shown):
    """5.5 indexes the tag; of the others 4.9 leaves out the byte 02 behind the last property."""
    records = [message(keys="k", tags="t", at=number) for number in range(9)]
    if dialect == "4.9":
        records = [replace(record, properties_data=record.properties_data.removesuffix(b"\2")) for record in records]
    make_store(tmp_path, records, items=100, dialect=dialect)
    with MessageStore(tmp_path) as store:
        assert store.dialect() == shown


@pytest.mark.parametrize("tags", ["", "t"])
def test_without_a_tagged_message_in_the_index_5_5_is_assumed(tmp_path, tags):
    make_store(tmp_path, [message(keys="k", tags=tags) for _ in range(5)], indexed=None if tags == "" else 0)
    with MessageStore(tmp_path) as store:
        assert store.dialect() is Dialect.V5_5


def test_the_newest_file_tells_which_version_goes_on(tmp_path):
    """A store that was upgraded: its older index files hold no tags."""
    records = [message(keys="k", tags="t", at=number) for number in range(30)]
    made = make_store(tmp_path, records, indexed=0)
    write_index(tmp_path, build_index(made.records[:15], "5.3", 7, 100))
    write_index(tmp_path, build_index(made.records[15:], "5.5", 7, 100), first_name=20260102120000000)
    with MessageStore(tmp_path) as store:
        assert store.dialect() is Dialect.V5_5


class TestTopics:
    def test_folders_and_config_name_them(self, tmp_path):
        make_store(tmp_path, [message(topic="a"), message(topic="b")])
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "topics.json").write_text('{"topicConfigTable":{"c":{},"b":{}},"dataVersion":{}}')
        with MessageStore(tmp_path) as store:
            assert store.topics() == {"a", "b", "c"}

    def test_a_new_topic_is_noticed(self, tmp_path):
        make_store(tmp_path, [message(topic="a")])
        with MessageStore(tmp_path) as store:
            assert store.topics() == {"a"}
            (tmp_path / "consumequeue" / "b" / "0").mkdir(parents=True)
            assert store.topics() == {"a", "b"}

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"topicConfigTable": 7}', "\0\0", '{"topicConfigTable": []}'])
    def test_a_broken_config_leaves_the_folders(self, tmp_path, text):
        make_store(tmp_path, [message(topic="a")])
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "topics.json").write_text(text)
        with MessageStore(tmp_path) as store:
            assert store.topics() == {"a"}

    def test_files_beside_the_folders_are_no_topics(self, tmp_path):
        make_store(tmp_path, [message(topic="a")])
        (tmp_path / "consumequeue" / "notes").write_text("x")
        (tmp_path / "consumequeue" / "a" / "seven").mkdir()
        with MessageStore(tmp_path) as store:
            assert store.topics() == {"a"}
            assert store.queues("a") == [0]

    @pytest.mark.parametrize("topic", ["..", ".", "", "a/b", "../x", "a\0b", "x" * 300])
    def test_a_name_that_is_no_folder_s_never_becomes_a_path(self, tmp_path, topic):
        make_store(tmp_path / "store", [message(topic="a")])
        (tmp_path / "0").mkdir()
        with MessageStore(tmp_path / "store") as store:
            assert store.queues(topic) == []
            with pytest.raises(NotFoundError):
                store.queue(topic, 0)

    def test_a_negative_queue_is_none(self, tmp_path):
        make_store(tmp_path, [message(topic="a")])
        with MessageStore(tmp_path) as store, pytest.raises(NotFoundError):
            store.queue("a", -1)


class TestReadQueue:
    def test_up_to_count_messages_from_an_offset_on(self, tmp_path):
        make_store(tmp_path, [message(keys=str(number)) for number in range(25)])
        with MessageStore(tmp_path) as store:
            assert [m.keys for m in store.read_queue("T", 0, 8, 4)] == [("8",), ("9",), ("10",), ("11",)]
            assert len(store.read_queue("T", 0, 0, 1000)) == 25
            assert store.read_queue("T", 0, 25, 10) == []
            assert [m.keys for m in store.read_queue("T", 0, 24)] == [("24",)]

    def test_a_queue_that_is_not_there_is_not_found(self, tmp_path):
        make_store(tmp_path, [message()])
        with MessageStore(tmp_path) as store, pytest.raises(NotFoundError, match="no such queue"):
            store.read_queue("T", 1, 0)


class TestScan:
    def test_all_messages_or_a_stretch(self, tmp_path):
        made = make_store(tmp_path, [message(at=number) for number in range(80)])
        with MessageStore(tmp_path) as store:
            assert [m.physical_offset for m in store.scan()] == made.offsets
            assert [m.physical_offset for m in store.scan(made.offsets[5], made.offsets[70])] == made.offsets[5:70]


class TestSmallFiles:
    def test_a_missing_checkpoint_or_config_is_not_found(self, tmp_path):
        make_store(tmp_path, [message()])
        with MessageStore(tmp_path) as store:
            with pytest.raises(NotFoundError, match="checkpoint"):
                store.checkpoint()
            with pytest.raises(NotFoundError, match=r"topics\.json"):
                store.config("topics.json")

    def test_a_short_checkpoint_is_an_error_with_its_file(self, tmp_path):
        make_store(tmp_path, [message()])
        (tmp_path / "checkpoint").write_bytes(bytes(47))
        with MessageStore(tmp_path) as store, pytest.raises(TruncatedError) as error:
            store.checkpoint()
        assert (error.value.path, error.value.position) == (str(tmp_path / "checkpoint"), 47)

    def test_a_checkpoint_larger_than_its_page_is_refused(self, tmp_path):
        make_store(tmp_path, [message()])
        (tmp_path / "checkpoint").write_bytes(bytes(CHECKPOINT_SIZE + 1))
        with MessageStore(tmp_path) as store, pytest.raises(StoreError, match="larger"):
            store.checkpoint()

    def test_a_broken_config_is_an_error_with_its_file(self, tmp_path):
        make_store(tmp_path, [message()])
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "delayOffset.json").write_text('{"offsetTable":{1:')
        with MessageStore(tmp_path) as store, pytest.raises(TruncatedError) as error:
            store.config("delayOffset.json")
        assert error.value.path == str(tmp_path / "config" / "delayOffset.json")

    def test_keys_without_quotes_are_read(self, tmp_path):
        make_store(tmp_path, [message()])
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@group":{0:12,1:7}}}')
        with MessageStore(tmp_path) as store:
            table = store.config("consumerOffset.json")["offsetTable"]["T@group"]
        assert json.loads(json.dumps(table)) == {"0": 12, "1": 7}


def test_a_store_is_seen_as_it_grows(tmp_path):
    """What was appended since the last call is seen by the next one."""
    records = [message(keys="k", at=number) for number in range(90)]
    made = make_store(tmp_path / "later", records, indexed=0)
    early = make_store(tmp_path / "store", records[:10], indexed=0)
    with MessageStore(early.folder) as store:
        assert store.cover().end_offset == early.end_offset
        for path in made.log_files:
            target = early.folder / "commitlog" / path.name
            if target.exists():
                with target.open("r+b") as writer:
                    writer.write(path.read_bytes())
            else:
                shutil.copy(path, target)
        assert store.cover().end_offset == made.end_offset
        assert [m.physical_offset for m in store.scan()] == made.offsets


def test_the_cover_is_kept_while_nothing_changes(tmp_path):
    make_store(tmp_path, [message(at=number) for number in range(5)])
    with MessageStore(tmp_path) as store:
        assert store.cover() is store.cover()


def test_a_log_that_grows_while_its_end_is_looked_behind_is_looked_at_again(tmp_path, monkeypatch):
    made = make_store(tmp_path / "store", [message(keys=f"k{number}") for number in range(3)], indexed=0)
    path, last = made.log_files[0], made.records[-1]
    whole = path.read_bytes()
    path.write_bytes(whole[: last.physical_offset + last.size - 9].ljust(len(whole), b"\0"))
    with MessageStore(made.folder) as store:
        damage = store.commit_log.damage

        def write_and_look(end_offset):
            with path.open("r+b") as file:
                file.write(whole)
            return damage(end_offset)

        monkeypatch.setattr(store.commit_log, "damage", write_and_look)
        assert store.cover().end_offset == last.physical_offset
        assert store.cover().end_offset == made.end_offset


def test_times_are_those_of_the_broker(tmp_path):
    make_store(tmp_path, [message(at=1)])
    with MessageStore(tmp_path) as store:
        [stored] = store.scan()
    assert stored.store_time.timestamp() * 1000 == T + 1
