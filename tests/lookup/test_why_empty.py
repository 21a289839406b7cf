"""Why nothing was found: every reason that INTERFACE.md names, and the order between them."""

import shutil

import pytest

import whence
from tests.lookup.judge import offsets
from tests.store_maker import FILE_SIZE, T, make_store, message
from whence.lookup.search import WHY_EMPTY

MESSAGES = [
    message(keys=f"k{number} every", unique_id=f"id-{number}", tags="even" if number % 2 == 0 else "odd", at=number)
    for number in range(100)
]


def why(folder, **question):
    """The reason; nothing may have been found."""
    with whence.open(folder) as store:
        answer = store.find(**question)
    assert offsets(answer) == []
    return answer.receipt.why_empty


@pytest.fixture
def made(tmp_path):
    return make_store(tmp_path, MESSAGES, items=80)


@pytest.fixture
def expired(made):
    """The oldest log file is gone, with the messages in it."""
    made.log_files[0].unlink()
    return made


def test_the_reasons_are_those_of_the_interface_in_its_order():
    assert WHY_EMPTY == (
        "damaged",
        "not_indexed",
        "no_such_topic",
        "expired",
        "beyond_end",
        "outside_window",
        "filtered",
        "probably_expired",
        "no_such_key",
    )


def test_an_answer_with_messages_has_no_reason(made):
    with whence.open(made.folder) as store:
        assert store.find(key="k7").receipt.why_empty is None


class TestNoSuchKey:
    @pytest.mark.parametrize(
        "question",
        [
            {"key": "absent"},
            {"key": "absent", "topic": "T"},
            {"key": "absent", "scan": True},
            {"key": ["absent", "missing"]},
            {"key": "id-7"},  # a unique id is no key
            {"key": "T#even"},  # nor is a tag
            {"id": "absent"},
            {"id": "7F0000010000AAAA1111222233330001"},
            {"key": "k7", "topic": "T", "queue": 5},
        ],
    )
    def test_a_key_that_no_message_bears(self, made, question):
        assert why(made.folder, **question) == "no_such_key"

    def test_a_key_of_a_rollback_record(self, tmp_path):
        make_store(tmp_path, [message(keys="k", sys_flag=0xC), message(keys="other")], items=10)
        assert why(tmp_path, key="k") == "no_such_key"

    def test_a_key_that_only_a_system_topic_has(self, tmp_path):
        make_store(tmp_path, [message(keys="k", topic="SCHEDULE_TOPIC_XXXX"), message(keys="other")], items=10)
        assert why(tmp_path, key="k") == "no_such_key"
        assert why(tmp_path, key="k", scan=True) == "no_such_key"

    def test_an_empty_store(self, tmp_path):
        (tmp_path / "commitlog").mkdir()
        assert why(tmp_path, key="k") == "no_such_key"

    def test_an_offset_at_which_no_record_begins(self, made):
        assert why(made.folder, offset=made.offsets[5] + 1) == "no_such_key"


class TestDamaged:
    def test_a_record_at_the_end_of_the_log_with_whole_ones_behind_it(self, made):
        last = made.log_files[-1]
        data = bytearray(last.read_bytes())
        data[90] ^= 1
        last.write_bytes(data)
        shutil.rmtree(made.folder / "index")
        assert why(made.folder, key="absent") == "damaged"
        assert why(made.folder, topic="absent", key="absent") == "damaged"


class TestNotIndexed:
    @pytest.fixture
    def half(self, tmp_path):
        return make_store(tmp_path, MESSAGES, items=1000, indexed=50)

    def test_what_no_index_covers_and_may_not_be_scanned(self, half):
        assert why(half.folder, key="k70", no_scan=True) == "not_indexed"
        assert why(half.folder, key="absent", no_scan=True) == "not_indexed"

    def test_comes_before_a_missing_topic(self, half):
        assert why(half.folder, key="k70", topic="absent", no_scan=True) == "not_indexed"

    def test_a_window_alone_has_no_index(self, half):
        with whence.open(half.folder) as store:
            answer = store.find(since=T, until=T + 1, no_scan=True)
        assert (offsets(answer), answer.receipt.why_empty, answer.receipt.complete) == ([], "not_indexed", False)

    def test_is_no_reason_where_all_is_indexed(self, tmp_path):
        make_store(tmp_path, MESSAGES, items=1000)
        assert why(tmp_path, key="absent", no_scan=True) == "no_such_key"


class TestNoSuchTopic:
    @pytest.mark.parametrize(
        "question",
        [
            {"key": "k7"},
            {"key": "k7", "scan": True},
            {"queue": 0, "queue_offset": 0},
            {"since": T, "until": T + 10},
            {"tag": "even"},
            {},
        ],
    )
    def test_a_topic_that_is_nowhere(self, made, question):
        assert why(made.folder, topic="absent", **question) == "no_such_topic"

    def test_a_topic_that_only_the_log_knows_is_one(self, tmp_path):
        """Queues and configuration are gone; the messages tell."""
        make_store(tmp_path, MESSAGES, items=1000, queues=False)
        with whence.open(tmp_path) as store:
            assert store.find(key="absent", topic="T", scan=True).receipt.why_empty == "no_such_key"

    def test_a_topic_without_messages_is_one(self, made):
        (made.folder / "consumequeue" / "quiet" / "0").mkdir(parents=True)
        assert why(made.folder, key="k7", topic="quiet") == "no_such_key"


class TestExpired:
    def test_an_offset_below_the_log_s_start(self, expired):
        assert why(expired.folder, offset=expired.offsets[3]) == "expired"
        assert why(expired.folder, offset=0) == "expired"

    def test_an_offset_id_below_the_log_s_start(self, expired):
        assert why(expired.folder, id=expired.records[3].offset_id) == "expired"

    def test_a_queue_offset_whose_message_is_gone(self, expired):
        assert why(expired.folder, topic="T", queue=0, queue_offset=3) == "expired"

    def test_a_queue_offset_whose_queue_file_is_gone_too(self, expired):
        queue = expired.folder / "consumequeue" / "T" / "0"
        for path in sorted(queue.iterdir())[:2]:
            path.unlink()
        assert expired.offsets[20] < FILE_SIZE
        with whence.open(expired.folder) as store:
            for queue_offset in (3, 19, 20):
                answer = store.find(topic="T", queue=0, queue_offset=queue_offset)
                assert (offsets(answer), answer.receipt.why_empty) == ([], "expired")
                assert answer.receipt.complete and answer.receipt.scanned_bytes == 0

    def test_a_queue_of_which_all_messages_are_gone(self, tmp_path):
        made = make_store(tmp_path, [*(message(topic="U") for _ in range(15)), *MESSAGES])
        made.log_files[0].unlink()
        next((tmp_path / "consumequeue" / "U" / "0").glob("*0000")).unlink()
        assert why(tmp_path, topic="U", queue=0, queue_offset=3) == "expired"
        assert why(tmp_path, topic="U", queue=0, queue_offset=14) == "expired"

    def test_not_an_id_that_cannot_be_an_offset_id(self, made):
        """Unique ids look like offset ids; in this one the place of the offset holds a negative number."""
        assert why(made.folder, id="7F0000010000AAAAF111222233330001") == "no_such_key"


class TestBeyondEnd:
    def test_an_offset_behind_the_log_s_end(self, made):
        assert why(made.folder, offset=made.end_offset) == "beyond_end"
        assert why(made.folder, offset=2**62) == "beyond_end"

    def test_a_queue_offset_behind_the_queue_s_end(self, made):
        assert why(made.folder, topic="T", queue=0, queue_offset=100) == "beyond_end"
        assert why(made.folder, topic="T", queue=0, queue_offset=2**62) == "beyond_end"

    def test_not_a_queue_offset_that_the_queue_does_not_hold_yet(self, tmp_path):
        """A broker writes the log first and the queue later."""
        made = make_store(tmp_path, MESSAGES)
        shutil.rmtree(tmp_path / "consumequeue")
        early = make_store(tmp_path / "early", MESSAGES[:60])
        shutil.copytree(early.folder / "consumequeue", tmp_path / "consumequeue")
        with whence.open(tmp_path) as store:
            for queue_offset in (5, 59, 60, 99):
                answer = store.find(topic="T", queue=0, queue_offset=queue_offset)
                assert offsets(answer) == [made.offsets[queue_offset]]


class TestOutsideWindow:
    def test_the_key_exists_but_not_in_the_window(self, made):
        assert why(made.folder, key="k7", since=T + 8) == "outside_window"
        assert why(made.folder, key="k7", until=T + 6) == "outside_window"
        assert why(made.folder, key="k7", since=T + 8, until=T + 9, scan=True) == "outside_window"

    def test_a_window_in_which_nothing_was_stored(self, made):
        assert why(made.folder, since=T + 1000) == "outside_window"
        assert why(made.folder, since=0, until=T - 1) == "outside_window"

    def test_a_key_that_does_not_exist_is_no_matter_of_the_window(self, made):
        assert why(made.folder, key="absent", since=T + 8) == "no_such_key"

    def test_an_id_or_an_offset_outside_the_window(self, made):
        assert why(made.folder, id="id-7", since=T + 8) == "outside_window"
        assert why(made.folder, offset=made.offsets[7], since=T + 8) == "outside_window"

    def test_comes_before_filtered(self, made):
        """Of two messages one is outside the window, the other has another tag."""
        assert why(made.folder, key="every", tag="even", since=T + 99) == "outside_window"


class TestFiltered:
    def test_the_key_exists_but_not_with_the_tag(self, made):
        assert why(made.folder, key="k7", tag="even") == "filtered"
        assert why(made.folder, key="k7", tag="even", scan=True) == "filtered"

    def test_the_id_exists_but_not_with_the_tag(self, made):
        assert why(made.folder, id="id-7", tag="even") == "filtered"

    def test_the_window_holds_messages_but_not_with_the_tag(self, made):
        assert why(made.folder, since=T + 7, until=T + 7, tag="even") == "filtered"

    def test_no_message_has_the_tag(self, made):
        assert why(made.folder, tag="absent") == "filtered"


class TestProbablyExpired:
    """The index has the key's hash, its messages are gone."""

    def test_the_index_file_reaches_into_the_log(self, tmp_path):
        made = make_store(tmp_path, MESSAGES, items=1000)
        made.log_files[0].unlink()
        assert made.offsets[3] < FILE_SIZE
        assert why(tmp_path, key="k3") == "probably_expired"
        assert why(tmp_path, id="id-3") == "probably_expired"

    def test_the_index_file_lies_below_the_log_altogether(self, expired):
        below = [file for file in expired.index if file.end_physical_offset < FILE_SIZE]
        assert below
        assert why(expired.folder, key="k3") == "probably_expired"

    def test_not_if_the_hash_is_unknown(self, expired):
        assert why(expired.folder, key="absent") == "no_such_key"

    def test_not_if_the_key_is_filtered_too(self, expired):
        """It has messages in the log: those are the reason."""
        assert why(expired.folder, key="every", tag="absent") == "filtered"
        assert why(expired.folder, key="every", until=T) == "outside_window"

    def test_not_said_by_a_scan_of_the_log_which_asks_no_index(self, expired):
        assert why(expired.folder, key="k3", scan=True) == "no_such_key"
