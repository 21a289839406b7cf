"""``find_many`` gives for each key what ``find`` gives for it alone, and what a look at every message gives."""

import io
import itertools
import json
import shutil
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whence
from tests.golden import ALL, few_fast
from tests.lookup.judge import Judge, offsets
from tests.reference import ROLLBACK, Record, i32, i64
from tests.store_maker import T, make_store, message, place, write_index
from tests.strategies import KEYS, key_properties, property_blobs
from whence.door import open_stores
from whence.errors import UsageError
from whence.formats.hashing import key_hash
from whence.lookup import asked_keys, many
from whence.lookup.many_columns import POSITIONS
from whence.store.damage import DamageKind

BODY_FLIP = "v5-damaged-body-flip"  # whole records lie behind the log's end: no answer about the log is complete
ABSENT = ["absent"]


def by_key(answer):
    """The offsets of each key's rows, in the order of the table; a key has its rows in one run."""
    pairs = zip(answer.table["key"].to_pylist(), answer.table["physical_offset"].to_pylist(), strict=True)
    runs = [(key, [offset for _, offset in run]) for key, run in itertools.groupby(pairs, lambda pair: pair[0])]
    found = dict(runs)
    assert len(found) == len(runs)
    return found


def wanted_of(known, keys):
    return {key: known[key] for key in keys if known.get(key)}


def same_as_find(store, keys, **question):
    """Hold the answer to all keys against one ``find`` for each; gives the answer."""
    answer = store.answer_many(keys, **question)
    alone = {key: store.find(key=key, limit=None, **question) for key in dict.fromkeys(keys)}
    assert by_key(answer) == {key: offsets(each) for key, each in alone.items() if len(each)}
    assert list(by_key(answer)) == [key for key, each in alone.items() if len(each)]
    assert answer.missing.to_pylist() == [key for key, each in alone.items() if not len(each)]
    receipt, receipts = answer.receipt, [each.receipt for each in alone.values()]
    assert receipt.complete is all(each.complete for each in receipts)
    assert receipt.items_visited == sum(each.items_visited for each in receipts)
    assert receipt.candidates - receipt.rejected == receipt.rows == len(answer)
    assert (receipt.keys, receipt.keys_missing) == (len(alone), len(answer.missing))
    same = ("searched_from_offset", "searched_to_offset", "index_source", "topics_from", "indexed_to_offset",
            "indexed_to_timestamp_ms", "scanned_bytes", "index_files", "index_files_skipped")  # fmt: skip
    for name in same:
        assert {getattr(receipt, name)} == {getattr(each, name) for each in receipts}, name
    assert set(receipt.damage) == {damage for each in receipts for damage in each.damage}
    assert (receipt.truncated, receipt.cursor, receipt.logs) == (False, None, [])
    if not len(answer):
        assert receipt.why_empty in {each.why_empty for each in receipts}
    return answer


@pytest.mark.parametrize("name", ALL)
class TestEveryKeyOfAGoldenStore:
    def test_in_all_topics(self, asked, judge, name):
        known = judge(name)
        keys = [*known.by_key, *ABSENT]
        for question in ({}, {"scan": True}):
            answer = asked(name).answer_many(keys, **question)
            assert by_key(answer) == known.by_key
            assert answer.missing.to_pylist() == ABSENT
            assert answer.receipt.complete is (name != BODY_FLIP)
            assert answer.receipt.rows == len(answer) == answer.receipt.candidates - answer.receipt.rejected
            assert answer.receipt.keys == len(keys)
            assert answer.receipt.keys_missing == 1

    def test_in_each_topic(self, asked, judge, name):
        known = judge(name).by_topic_and_key
        keys = list(dict.fromkeys(key for _, key in known))
        for topic in {topic for topic, _ in known}:
            wanted = wanted_of({key: known.get((topic, key)) for key in keys}, keys)
            answer = asked(name).answer_many(keys, topic=topic)
            assert by_key(answer) == wanted
            assert set(answer.table["topic"].to_pylist()) == ({topic} if wanted else set())

    def test_in_system_topics_too(self, asked, judge, name):
        known = judge(name).by_topic_and_key
        wanted: dict[str, list[int]] = {}
        for (_, key), found in known.items():
            wanted[key] = sorted(wanted.get(key, []) + found, reverse=True)
        answer = asked(name).answer_many(wanted, system_topics=True)
        assert by_key(answer) == wanted

    def test_in_windows(self, asked, judge, name):
        known = judge(name)
        for since_ms, until_ms in known.windows(20, 3):
            wanted = {key: known.window(since_ms, until_ms, key=key) for key in known.by_key}
            answer = asked(name).answer_many(known.by_key, since=since_ms, until=until_ms)
            assert by_key(answer) == wanted_of(wanted, wanted)

    def test_oldest_first(self, asked, judge, name):
        known = judge(name)
        answer = asked(name).answer_many(known.by_key, oldest_first=True)
        assert by_key(answer) == {key: found[::-1] for key, found in known.by_key.items()}

    def test_a_limit_is_that_of_each_key(self, asked, judge, name):
        known = judge(name)
        answer = asked(name).answer_many(known.by_key, limit=2)
        assert by_key(answer) == {key: found[:2] for key, found in known.by_key.items()}
        assert answer.receipt.truncated is any(len(found) > 2 for found in known.by_key.values())

    def test_positions_are_those_of_the_messages(self, asked, judge, name):
        known = judge(name)
        records = {record.physical_offset: record for record in known.records}
        answer = asked(name).answer_many(known.by_key)
        assert answer.table.column_names == ["key", *POSITIONS]
        for row in answer.table.to_pylist():
            record = records[row.pop("physical_offset")]
            assert row.pop("key") in record.keys
            assert row == {column: getattr(record, column) for column in row}

    def test_a_tag_leaves_the_others_out(self, asked, judge, name):
        known = judge(name)
        records = {record.physical_offset: record for record in known.records}
        tags = {record.tags for record in known.records if record.tags}
        for tag in [*sorted(tags)[:3], "no such tag"]:
            answer = asked(name).answer_many(known.by_key, tag=tag)
            wanted = {
                key: [offset for offset in found if records[offset].tags == tag]
                for key, found in known.by_key.items()
            }
            assert by_key(answer) == wanted_of(wanted, wanted)


@pytest.mark.parametrize("name", few_fast(ALL))
def test_some_keys_and_their_receipt_are_those_of_find(asked, judge, name):
    known = judge(name)
    keys = [*Random(name).sample(sorted(known.by_key), 12), *ABSENT, "Aa", "BB"]
    times = sorted(record.store_timestamp_ms for record in known.records)
    for question in (
        {},
        {"scan": True},
        {"no_scan": True},
        {"topic": known.records[5].topic},
        {"since": times[30], "until": times[-30]},
        {"system_topics": True, "oldest_first": True},
        {"topic": "no such topic"},
    ):
        same_as_find(asked(name), keys, **question)


@pytest.mark.parametrize("name", few_fast(ALL))
def test_messages_are_decoded_as_message_decodes_them(asked, judge, name):
    columns = [
        "topic",
        "tags",
        "keys",
        "unique_id",
        "properties",
        "body",
        "body_size",
        "reconsume_times",
        "offset_id",
    ]
    answer = asked(name).answer_many(judge(name).by_key, columns=[*columns, "physical_offset"])
    assert answer.table.column_names == ["key", *columns, "physical_offset"]
    store = asked(name).stores[0]
    for row in answer.table.to_pylist():
        decoded = store.read(row["physical_offset"])
        assert row["key"] in decoded.keys
        row["properties"] = dict(row["properties"])
        row["keys"] = tuple(row["keys"])
        assert all(row[column] == getattr(decoded, column) for column in columns)


MESSAGES = [
    message(
        keys=f"k{number} every", tags="even" if number % 2 == 0 else "odd", at=number, topic="TU"[number % 3 == 0]
    )
    for number in range(60)
]


class TestQuestions:
    @pytest.fixture(params=[None, 0, 31])
    def store(self, tmp_path, request):
        """A store whose log is indexed, not at all, or in part."""
        make_store(tmp_path, MESSAGES, indexed=request.param)
        with whence.open(tmp_path) as store:
            yield store

    def test_of_all_kinds(self, store):
        keys = ["k7", "every", "k8", "absent", "k7", "k59"]
        for question in ({}, {"topic": "T"}, {"tag": "odd"}, {"since": T + 5, "until": T + 9}, {"no_scan": True},
                         {"scan": True}, {"topic": "T", "queue": 0}, {"topic": "T", "queue": 1},
                         {"topic": "nowhere"}, {"tag": "neither"}, {"until": T - 1}):  # fmt: skip
            same_as_find(store, keys, **question)

    def test_of_which_nothing_comes(self, store):
        for keys, question, why in (
            (["absent"], {}, "no_such_key"),
            (["k7"], {"tag": "neither"}, "filtered"),
            (["k7"], {"until": T - 1}, "outside_window"),
            (["k7"], {"topic": "nowhere"}, "no_such_topic"),
        ):
            assert store.answer_many(keys, **question).receipt.why_empty == why

    def test_without_a_key(self, store):
        answer = store.answer_many([])
        assert (len(answer), len(answer.missing), answer.receipt.keys) == (0, 0, 0)
        assert answer.table.column_names == ["key", *POSITIONS]

    def test_that_cannot_be_asked(self, store):
        for question in ({"limit": 0}, {"since": 5, "until": 4}, {"scan": True, "no_scan": True}, {"queue": 1}):
            with pytest.raises(UsageError):
                store.answer_many(["k7"], **question)
        with pytest.raises(UsageError, match="no column 'nope'; there are topic, "):
            store.answer_many(["k7"], columns=["nope"])
        with pytest.raises(UsageError, match="the column 'topic' is asked for twice"):
            store.answer_many(["k7"], columns=["topic", "size", "topic"])
        with pytest.raises(UsageError, match="no column 'topic,size'; there are topic, "):
            store.answer_many(["k7"], columns="topic,size")
        assert store.answer_many(["k7"], columns="topic").table.column_names == ["key", "topic"]
        with pytest.raises(TypeError, match="cursor"):
            store.answer_many(["k7"], cursor="x")


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["LOOKUPS", "KEYS_AT_ONCE"])
@pytest.mark.parametrize("batch", [1, 7, 64])
def test_batches_change_nothing(tmp_path, monkeypatch, batch, limit):
    """Neither those of keys, nor those of candidates, nor the pieces of a long list."""
    make_store(tmp_path, MESSAGES, indexed=31)
    keys = [f"k{number}" for number in range(70)] + ["every", "k3"]
    with whence.open(tmp_path) as store:
        whole = store.answer_many(keys)
        monkeypatch.setattr(many, limit, batch)
        monkeypatch.setattr(many, "CHECKED", batch)
        in_batches = store.answer_many(keys)
        assert in_batches.table.equals(whole.table)
        assert in_batches.missing.to_pylist() == whole.missing.to_pylist()
        whole.receipt.elapsed_us = in_batches.receipt.elapsed_us = 0
        assert in_batches.receipt == whole.receipt
        monkeypatch.setattr(asked_keys, "CHUNK", batch)
        monkeypatch.setattr(asked_keys, "PIECE_SIZE", 4 * batch)
        in_pieces = store.answer_many(keys[:-1])
        assert in_pieces.table.equals(whole.table)
        in_pieces.receipt.elapsed_us = 0
        assert in_pieces.receipt == whole.receipt


def test_batches_of_rows_come_one_after_the_other(tmp_path):
    make_store(tmp_path, MESSAGES)
    keys = [f"k{number}" for number in range(70)]
    with whence.open(tmp_path) as store:
        missing: list[str] = []
        batches = store.find_many_batches(keys, on_missing=lambda array: missing.extend(array.to_pylist()))
        table = pa.Table.from_batches(list(batches), batches.schema)
        assert table.equals(store.answer_many(keys).table)
        assert batches.receipt.rows == 60
        assert missing == keys[60:]


class TestKeysThatAreAlike:
    def test_a_key_is_answered_once_however_often_it_is_asked(self, tmp_path):
        make_store(tmp_path, MESSAGES)
        with whence.open(tmp_path) as store:
            answer = store.answer_many(["k5", "k4", "k5", b"k5", "k4"])
        assert list(by_key(answer)) == ["k5", "k4"]
        assert answer.receipt.keys == 2

    def test_a_key_that_stands_in_a_message_twice_gives_it_once(self, tmp_path):
        made = make_store(tmp_path, [message(keys="a b a"), message(keys="b b")])
        with whence.open(tmp_path) as store:
            for question in ({}, {"scan": True}):
                answer = same_as_find(store, ["a", "b"], **question)
                assert by_key(answer) == {"a": made.offsets[:1], "b": made.offsets[::-1]}

    def test_keys_with_one_hash_are_told_apart(self, tmp_path):
        made = make_store(tmp_path, [message(keys=key) for key in ("Aa", "BB", "AaBB", "BBAa", "Aa")], slots=1)
        assert key_hash("T", "Aa") == key_hash("T", "BB")
        with whence.open(tmp_path) as store:
            answer = same_as_find(store, ["BB", "Aa", "BBBB", "AaAa", "AaBB"])
        assert by_key(answer) == {
            "BB": made.offsets[1:2], "Aa": [made.offsets[4], made.offsets[0]], "AaBB": made.offsets[2:3]
        }  # fmt: skip
        assert answer.receipt.rejected > 0

    def test_keys_that_hash_alike_in_two_topics_give_a_message_once(self, tmp_path):
        """``Aa#k`` and ``BB#k`` have one hash: the item of either is found under both."""
        made = make_store(tmp_path, [message(keys="k", topic="Aa"), message(keys="k", topic="BB")])
        with whence.open(tmp_path) as store:
            assert by_key(store.answer_many(["k"])) == {"k": made.offsets[::-1]}
            assert by_key(store.answer_many(["k"], topic="BB")) == {"k": made.offsets[1:]}

    def test_a_unique_id_and_a_tag_are_no_keys(self, tmp_path):
        make_store(tmp_path, [message(keys="k", unique_id="id", tags="tag")])
        with whence.open(tmp_path) as store:
            for question in ({}, {"scan": True}):
                assert same_as_find(store, ["id", "tag", "T#tag", "k"], **question).missing.to_pylist() == [
                    "id", "tag", "T#tag"
                ]  # fmt: skip

    def test_a_rollback_bears_no_key(self, tmp_path):
        make_store(tmp_path, [message(keys="k", sys_flag=ROLLBACK), message(keys="k")])
        with whence.open(tmp_path) as store:
            for question in ({}, {"scan": True}):
                assert len(same_as_find(store, ["k"], **question)) == 1


def raw(properties_data: bytes, topic: str = "T") -> Record:
    return Record(topic=topic, store_timestamp_ms=T, stored_body=b"body", properties_data=properties_data)


def test_malformed_texts_are_read_as_java_reads_them(tmp_path):
    """One U+FFFD for an encoded surrogate, one for each other byte that fits nowhere; the hash is that of these."""
    keys = [b"\xed\xa0\x80", b"\xff\xfe", b"a\xc3", b"\xe4\xbd", b"\xf0\x9f\x9a", "ä".encode(), "🚀".encode()]
    made = make_store(
        tmp_path, [raw(b"KEYS\x01" + key + b" k\x02TAGS\x01" + key + b"\x02") for key in keys], slots=3, items=100
    )
    texts = ["\ufffd", "\ufffd\ufffd", "a\ufffd", "ä", "🚀", "k", "\ufffd\ufffd\ufffd"]
    judge = Judge(made.records)
    with whence.open(tmp_path) as store:
        for question in ({}, {"scan": True}):
            answer = same_as_find(store, texts, **question)
            assert by_key(answer) == wanted_of(judge.by_key, texts)
            for tag in [*texts, "\ud800"]:
                same_as_find(store, texts, tag=tag, **question)


@settings(max_examples=60)
@given(st.data())
def test_any_messages_give_what_find_gives(data):
    """Any keys and properties, malformed ones too, in files of any size, indexed in part."""
    words = data.draw(st.lists(KEYS, min_size=1, max_size=6))
    values = st.lists(st.sampled_from([*words, ""]), min_size=1, max_size=4).map(" ".join) | key_properties()
    records = data.draw(
        st.lists(
            st.builds(
                lambda keys, topic, at, flag: message(keys=keys, topic=topic, at=at, sys_flag=flag),
                values,
                st.sampled_from(["T", "TopicTest", "SCHEDULE_TOPIC_XXXX"]),
                st.integers(0, 20),
                st.sampled_from([0, 0, 0, ROLLBACK]),
            )
            | property_blobs().map(raw),
            min_size=1,
            max_size=25,
        )
    )
    indexed = data.draw(st.none() | st.integers(0, len(records)))
    slots, items = data.draw(st.integers(1, 20)), data.draw(st.integers(3, 60))
    placed_keys = sorted({key for record in place(records, file_size=131_072) for key in record.keys})
    asked = data.draw(st.lists(st.sampled_from([*words, *placed_keys]), min_size=1, max_size=12))
    with TemporaryDirectory() as folder:
        made = make_store(
            Path(folder) / "store", records, slots=slots, items=items, indexed=indexed, file_size=131_072
        )
        # Where the properties of the last record hold a zero byte, it may be half written, and is not of the log yet.
        is_half = 0 in made.records[-1].properties_data
        judge = Judge(made.records[:-1] if is_half else made.records)
        with whence.open(made.folder) as store:
            for question in ({}, {"scan": True}, {"topic": "TopicTest"}, {"since": T + 5, "until": T + 10}):
                answer = same_as_find(store, asked, **question)
                if question in ({}, {"scan": True}):
                    assert by_key(answer) == wanted_of(judge.by_key, dict.fromkeys(asked))


class TestDamage:
    """Keys of a store of which something is broken: as ``find`` answers them in a store opened anew for each."""

    KEYS = ("k7", "every", "k40", "absent")

    def test_a_broken_chain_is_told_and_the_log_scanned_behind_it(self, tmp_path):
        made = make_store(tmp_path, MESSAGES, slots=1, items=1000)
        [path] = made.index_files
        data = bytearray(path.read_bytes())
        data[44 + 20 * 90 + 16 : 44 + 20 * 90 + 20] = i32(95)  # a cycle
        path.write_bytes(data)
        with whence.open(tmp_path) as store:
            answer = store.answer_many(self.KEYS)
        assert by_key(answer) == wanted_of(Judge(made.records).by_key, self.KEYS)
        [damage] = answer.receipt.damage
        assert (damage.path, damage.kind, damage.position) == (
            str(path), DamageKind.BAD_CHAIN, 44 + 20 * 90 + 16
        )  # fmt: skip
        assert answer.receipt.complete
        with whence.open(tmp_path) as store:
            assert store.find(key="every").receipt.damage == answer.receipt.damage

    def test_offsets_that_rise_along_a_chain_are_told_and_the_log_scanned(self, tmp_path):
        made = make_store(tmp_path, MESSAGES, slots=1, items=1000)
        [path] = made.index_files
        data = bytearray(path.read_bytes())
        at = 44 + 20 * 30 + 4
        data[at : at + 8] = i64(made.offsets[-2])
        path.write_bytes(data)
        with whence.open(tmp_path) as store:
            answer = store.answer_many(self.KEYS)
        assert by_key(answer) == wanted_of(Judge(made.records).by_key, self.KEYS)
        with whence.open(tmp_path) as store:
            assert store.find(key="every").receipt.damage == answer.receipt.damage

    def test_an_item_that_leads_to_no_record_is_damage_of_the_index(self, tmp_path):
        made = make_store(tmp_path, MESSAGES, slots=1, items=1000)
        [path] = made.index_files
        data = bytearray(path.read_bytes())
        at = 44 + 20 * 61 + 4
        data[at : at + 8] = i64(int.from_bytes(data[at : at + 8], "big") - 1)
        path.write_bytes(data)
        with whence.open(tmp_path) as store:
            answer = store.answer_many([*self.KEYS, *(f"k{number}" for number in range(60))])
        assert by_key(answer)["every"] == made.offsets[::-1]
        assert all(len(found) == 1 for key, found in by_key(answer).items() if key != "every")
        assert [damage.kind for damage in answer.receipt.damage] == [DamageKind.BAD_CHAIN]
        assert answer.receipt.complete

    def test_damage_met_in_a_later_batch_makes_a_table_begin_anew(self, tmp_path, monkeypatch):
        """What an index file gave before may lack messages. Batches that were given already say so instead."""
        made = make_store(tmp_path, MESSAGES, slots=1, items=1000)
        [path] = made.index_files
        good = path.read_bytes()
        monkeypatch.setattr(many, "LOOKUPS", 2)
        keys = [f"k{number}" for number in range(60)]
        with whence.open(tmp_path) as store:
            batches = store.find_many_batches(keys)
            taken = [next(given := iter(batches))]
            path.write_bytes(good[:40] + i32(2**31 - 1) + good[44:])
            taken += given
            assert pa.Table.from_batches(taken)["key"].to_pylist() == keys
            assert not batches.receipt.complete
            assert batches.receipt.damaged
        made = make_store(tmp_path / "again", MESSAGES, slots=997, items=1000)
        [path] = made.index_files
        data = bytearray(path.read_bytes())
        at = 40 + 4 * (key_hash("T", keys[-1]) % 997)
        data[at : at + 4] = i32(2**31 - 1)
        path.write_bytes(data)
        with whence.open(made.folder) as store:
            answer = store.answer_many(keys)
            assert by_key(answer) == {key: [offset] for key, offset in zip(keys, made.offsets, strict=True)}
            assert answer.receipt.complete
            assert [damage.kind for damage in answer.receipt.damage] == [DamageKind.BAD_CHAIN]

    @pytest.mark.parametrize("question", [{}, {"scan": True}, {"no_scan": True}])
    def test_a_record_that_fails_hides_what_it_held(self, tmp_path, question):
        made = make_store(tmp_path, MESSAGES, slots=3, items=30)
        log = made.log_files[0]
        data = bytearray(log.read_bytes())
        at = made.offsets[7]
        data[at + 88] ^= 1  # its body
        log.write_bytes(data)
        with whence.open(tmp_path) as store:
            for keys in (["k7", "k8"], ["k8", "k9"], ["every", "k7", "k8"], ["k7"]):
                same_as_find(store, keys, **question)

    def test_a_gap_in_the_log_is_told(self, tmp_path):
        made = make_store(tmp_path, MESSAGES, slots=3, items=30, file_size=2048)
        made.log_files[1].unlink()
        with whence.open(tmp_path) as store:
            for question in ({}, {"scan": True}):
                assert not same_as_find(store, self.KEYS, **question).receipt.complete

    def test_an_index_that_is_cut_is_not_used(self, tmp_path):
        made = make_store(tmp_path, MESSAGES, slots=3, items=30)
        cut = made.index_files[1]
        cut.write_bytes(cut.read_bytes()[:-7])
        with whence.open(tmp_path) as store:
            for question in ({}, {"no_scan": True}):
                same_as_find(store, self.KEYS, **question)

    def test_messages_that_have_expired_are_probably_those(self, tmp_path):
        made = make_store(tmp_path, [message(keys=f"k{number}") for number in range(60)], items=500, file_size=2048)
        made.log_files[0].unlink()
        with whence.open(tmp_path) as store:
            assert same_as_find(store, ["k0", "k1"]).receipt.why_empty == "probably_expired"

    def test_an_index_file_that_goes_away_is_done_without(self, tmp_path, monkeypatch):
        made = make_store(tmp_path, MESSAGES, slots=3, items=30)
        with whence.open(tmp_path) as store:
            batches = store.find_many_batches([f"k{number}" for number in range(60)])
            store.stores[0].cover()
            for path in made.index_files:
                path.unlink()
            store.stores[0].index._maps.clear()
            assert sum(map(len, batches)) == 60
            assert batches.receipt.complete

    def test_a_message_in_two_files_is_given_once(self, tmp_path):
        from tests.reference import build_index

        made = make_store(tmp_path, MESSAGES, indexed=0)
        shutil.rmtree(tmp_path / "index")
        write_index(tmp_path, build_index(made.records[:31], "5.5", 7, 1000))
        write_index(tmp_path, build_index(made.records[25:], "5.5", 7, 1000), first_name=20260102000000000)
        with whence.open(tmp_path) as store:
            same_as_find(store, self.KEYS)


class TestSeveralStores:
    def test_are_answered_as_one_by_key_and_time(self, tmp_path):
        first = make_store(tmp_path / "a", [message(keys="k a", at=at) for at in (1, 5, 9)])
        second = make_store(tmp_path / "b", [message(keys="k b", at=at) for at in (2, 5, 8)], indexed=1)
        with open_stores([first.folder, second.folder]) as store:
            answer = store.answer_many(["b", "k", "a", "absent"])
            alone = {key: store.find(key=key, limit=None) for key in ("b", "k", "a", "absent")}
        assert by_key(answer) == {key: offsets(each) for key, each in alone.items() if len(each)}
        times = answer.table.filter(pc.equal(answer.table["key"], "k"))["store_timestamp_ms"].to_pylist()
        assert times == [T + 9, T + 8, T + 5, T + 5, T + 2, T + 1]
        assert set(answer.table["store"].to_pylist()) == {str(first.folder), str(second.folder)}
        assert [log.store for log in answer.receipt.logs] == [str(first.folder), str(second.folder)]
        assert answer.receipt.scanned_bytes == alone["k"].receipt.scanned_bytes > 0
        assert (answer.receipt.keys, answer.receipt.keys_missing, answer.receipt.rows) == (4, 1, 12)

    def test_give_decoded_messages_each_of_its_own_log(self, tmp_path):
        first = make_store(tmp_path / "a", [message(keys="k", at=at, body=b"a%d" % at) for at in (1, 5, 9)])
        second = make_store(tmp_path / "b", [message(keys="k", at=at, body=b"b%d" % at) for at in (2, 5, 8)])
        with open_stores([first.folder, second.folder]) as store:
            bodies = store.answer_many(["k"], columns=["body"]).table["body"].to_pylist()
        assert bodies == [b"a9", b"b8", b"a5", b"b5", b"b2", b"a1"]


def test_a_body_that_cannot_be_decompressed_is_null_and_spoils_no_other(tmp_path):
    make_store(tmp_path, [message(keys="k", body=b"not compressed", sys_flag=1), message(keys="k", body=b"fine")])
    with whence.open(tmp_path) as store:
        answer = store.answer_many(["k"], columns=["body", "damage"])
        assert answer.table["body"].to_pylist() == [b"fine", None]
        assert answer.table["damage"].to_pylist()[0] is None
        assert "ZLIB" in answer.table["damage"].to_pylist()[1].upper()
        assert store.answer_many(["k"], columns=["body"]).table["body"].to_pylist() == [b"fine", None]


WORDS = ["k1", "ä", "k3", "🚀", "k5"]
AS_BYTES = "\n".join(WORDS).encode()


@pytest.mark.parametrize(
    "given",
    [
        WORDS,
        tuple(WORDS),
        iter(WORDS),
        dict.fromkeys(WORDS),
        [word.encode() for word in WORDS],
        [WORDS[0], WORDS[1].encode(), bytearray(b"k3"), memoryview("🚀".encode()), "k5"],
        pa.array(WORDS),
        pa.array(WORDS, pa.large_string()),
        pa.array(WORDS, pa.binary()),
        pa.array(WORDS, pa.string_view()),
        pa.array(["x", *WORDS, "y"]).slice(1, 5),
        pa.array(WORDS).dictionary_encode(),
        pa.chunked_array([WORDS[:2], [], [None], WORDS[2:]]),
        pa.table({"order": WORDS})["order"],
        io.BytesIO(AS_BYTES),
        io.BytesIO(AS_BYTES + b"\n"),
        io.BytesIO(AS_BYTES.replace(b"\n", b"\r\n") + b"\r\n"),
        io.BytesIO(b"\n\n" + AS_BYTES.replace(b"\n", b"\n\r\n\n") + b"\n\n"),
        io.BytesIO(b"\xef\xbb\xbf" + AS_BYTES),
    ],
)
def test_keys_come_in_many_shapes(tmp_path, given):
    make_store(tmp_path, [message(keys=word) for word in WORDS])
    with whence.open(tmp_path) as store:
        answer = store.answer_many(given)
    assert list(by_key(answer)) == WORDS
    assert answer.missing.to_pylist() == []


@pytest.mark.parametrize("piece", [8, 13, 100])
def test_a_file_of_keys_is_read_in_pieces(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(asked_keys, "PIECE_SIZE", piece)
    path = tmp_path / "keys.txt"
    path.write_bytes(AS_BYTES.replace(b"\n", b"\r\n"))
    read = list(asked_keys.read_keys(path))
    assert [keys.key(number) for keys in read for number in range(len(keys))] == WORDS
    assert len(read) > 1 or piece == 100


class ShortReads(io.BytesIO):
    """Gives as few bytes at a time as a pipe or a socket may."""

    def __init__(self, data: bytes, seed: int) -> None:
        super().__init__(data)
        self._random = Random(seed)

    def read(self, size=-1):
        return super().read(min(size, self._random.randint(1, 20)))


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_may_give_few_bytes_at_a_time(monkeypatch, seed):
    monkeypatch.setattr(asked_keys, "PIECE_SIZE", 256)
    words = [f"key-{number}" + "x" * (number * 37 % 200) for number in range(100)]
    data = ("\ufeff" + "\n".join(words)).encode()
    for stream in (ShortReads(data, seed), asked_keys.KeyLines(ShortReads(data, seed))):
        read = asked_keys.read_keys(stream)
        assert [keys.key(number) for keys in read for number in range(len(keys))] == words
    assert asked_keys.KeyLines(ShortReads(data, seed)).all_of(100) == [word.encode() for word in words]


@pytest.mark.parametrize("before", [b"", b"\n", b"a\n", b"a\nb\n" * 30])
def test_a_line_that_fills_a_piece_is_no_key(monkeypatch, before):
    monkeypatch.setattr(asked_keys, "PIECE_SIZE", 64)
    lines = before.count(b"\n")
    with pytest.raises(UsageError, match=rf"^line {lines + 1} and those behind it: no line ends in 64 bytes"):
        list(asked_keys.read_keys(ShortReads(before + b"x" * 65 + b"\n", 1)))
    list(asked_keys.read_keys(ShortReads(before + b"x" * 63 + b"\n", 1)))


@given(st.lists(st.binary(max_size=200).map(lambda line: line.replace(b"\xff", b"\n"))))
def test_lines_are_cut_as_python_cuts_them(lines):
    data = b"\n".join(lines)
    text = data.decode("utf-8", "replace")
    data = text.encode()
    lines = text.removeprefix("\ufeff").split("\n")
    wanted = [line for line in (line.removesuffix("\r") for line in lines) if line]
    read = list(asked_keys.read_keys(io.BytesIO(data)))
    found = [keys.key(number) for keys in read for number in range(len(keys))]
    assert found == list(dict.fromkeys(wanted))
    assert sum(keys.given for keys in read) == len(wanted)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["a", b"\xff"], "key 2, b'\\\\xff', is not UTF-8"),
        (["a", "b", ""], "key 3 is empty"),
        (["a", "k" * 32768], "key 2 has 32768 characters; 32767 can be stored"),
        (["a", "\ud800"], "half a character"),
        (["a", 5], "a key is a text"),
        (5, "keys are texts"),
        (pa.array([1, 2]), "column of int64"),
        (pa.array(["a", ""]), "key 2 is empty"),
        (io.BytesIO(b"a\nb\n\xc3\n"), "key 3, b'\\\\xc3', is not UTF-8"),
        (Path("no such file"), "no such file: there is no such file"),
    ],
)
def test_what_is_no_key_is_refused_with_its_number(tmp_path, given, why):
    make_store(tmp_path, [message(keys="a")])
    with whence.open(tmp_path) as store, pytest.raises(whence.WhenceError, match=why):
        store.answer_many(given)


@given(st.lists(KEYS | st.sampled_from(["a", "b"]), max_size=40))
def test_distinct_keys_are_found_by_their_text(words):
    [*read] = asked_keys.read_keys(words)
    distinct = list(dict.fromkeys(words))
    if not distinct:
        assert read == []
        return
    [keys] = read
    assert [keys.key(number) for number in range(len(keys))] == distinct
    assert [keys.number(word) for word in distinct] == list(range(len(distinct)))
    assert keys.number("none of them ") is None
    hashes = keys.key_hashes(["T", "ä"], 0, len(keys)).tolist()
    assert hashes == [key_hash(topic, word) for topic in ("T", "ä") for word in distinct]


def test_a_table_keeps_its_receipt_in_a_file_too(asked, judge, tmp_path):

    keys = [*judge("v5-clean").by_key][:20]
    answer = asked("v5-clean").answer_many(keys, columns=["body"])
    table = asked("v5-clean").find_many(keys, columns=["body"])
    assert table.equals(answer.table)
    pq.write_table(table, tmp_path / "found.parquet")
    metadata = pq.read_table(tmp_path / "found.parquet").schema.metadata
    assert json.loads(metadata[b"whence.question"]) == answer.question.to_dict()
    receipt = json.loads(metadata[b"whence.receipt"])
    assert receipt | {"elapsed_us": 0} == answer.receipt.to_dict() | {"elapsed_us": 0}
    assert receipt["complete"] and receipt["keys"] == 20
