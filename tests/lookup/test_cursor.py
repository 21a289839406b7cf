"""Cursor: short, opaque, of one question, and as good after growth, restarts and rebuilds as before."""

import base64
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whence
from tests.lookup.judge import offsets
from tests.reference import build_index
from tests.store_maker import T, log_bytes, make_store, message, place, write_index
from whence.door import Store, open_stores
from whence.errors import UsageError
from whence.lookup.cursor import decode_cursor, encode_cursor
from whence.lookup.question import make_question

MESSAGES = [message(keys="k", at=1000 * number) for number in range(30)]


@pytest.fixture
def made(tmp_path):
    return make_store(tmp_path, MESSAGES, items=12)


def test_it_is_short_and_can_be_copied_as_one_word(made):
    with whence.open(made.folder) as store:
        cursor = store.find(key="k", limit=3).cursor
    assert cursor is not None
    assert len(cursor) < 80
    assert cursor.replace("-", "").replace("_", "").isalnum()


def test_it_does_not_show_the_question(made):
    make_store(made.folder / "secret", [message(keys="secret") for _ in range(3)])
    with whence.open(made.folder / "secret") as store:
        cursor = store.find(key="secret", limit=1).cursor
    assert cursor is not None
    assert b"secret" not in base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))


def rest(store, cursor, **question):
    found = []
    while cursor is not None:
        answer = store.find(cursor=cursor, **question)
        found += offsets(answer)
        cursor = answer.cursor
    return found


class TestItGoesOn:
    def test_with_another_limit(self, made):
        with whence.open(made.folder) as store:
            first = store.find(key="k", limit=3)
            assert rest(store, first.cursor, key="k", limit=11) == made.offsets[-4::-1]
            assert rest(store, first.cursor, key="k", limit=None) == made.offsets[-4::-1]

    def test_after_a_restart(self, made):
        with whence.open(made.folder) as store:
            cursor = store.find(key="k", limit=3).cursor
        with whence.open(made.folder) as store:
            assert rest(store, cursor, key="k", limit=7) == made.offsets[-4::-1]

    @pytest.mark.parametrize("oldest_first", [False, True])
    def test_while_the_log_grows(self, made, oldest_first):
        """Newest first, what comes later is not part of the answer; oldest first, it is its end."""
        question = {"key": "k", "limit": 4, "oldest_first": oldest_first}
        with whence.open(made.folder) as store:
            first = store.find(**question)
            later = place([*MESSAGES, *(message(keys="k", at=10**6) for _ in range(40))])
            for name, data in log_bytes(later).items():
                path = made.folder / "commitlog" / name
                with path.open("r+b" if path.exists() else "wb") as writer:
                    writer.write(data)
            found = offsets(first) + rest(store, first.cursor, **question)
        grown = [record.physical_offset for record in later]
        assert found == (grown if oldest_first else made.offsets[::-1])

    def test_after_the_index_was_built_anew(self, made):
        with whence.open(made.folder) as store:
            cursor = store.find(key="k", limit=3).cursor
        shutil.rmtree(made.folder / "index")
        write_index(made.folder, build_index(made.records, "5.5", 101, 500))
        with whence.open(made.folder) as store:
            assert rest(store, cursor, key="k", limit=7) == made.offsets[-4::-1]

    def test_from_an_index_to_a_scan_it_does_not_for_that_is_another_question(self, made):
        with whence.open(made.folder) as store:
            cursor = store.find(key="k", limit=3).cursor
            with pytest.raises(UsageError, match="another question"):
                store.find(key="k", limit=3, cursor=cursor, scan=True)

    def test_after_messages_have_expired(self, tmp_path):
        made = make_store(tmp_path, MESSAGES * 4, items=12)
        with whence.open(tmp_path) as store:
            first = store.find(key="k", limit=5)
            made.log_files[0].unlink()
            begin = int(made.log_files[0].name)
            found = offsets(first) + rest(store, first.cursor, key="k", limit=7)
        assert found == [offset for offset in reversed(made.offsets) if offset >= begin]

    def test_when_the_message_it_stopped_at_has_expired(self, tmp_path):
        made = make_store(tmp_path, MESSAGES * 4, items=12)
        with whence.open(tmp_path) as store:
            first = store.find(key="k", limit=2, oldest_first=True)
            made.log_files[0].unlink()
            begin = int(made.log_files[0].name)
            assert rest(store, first.cursor, key="k", limit=50, oldest_first=True) == [
                offset for offset in made.offsets if offset >= begin
            ]


def test_ages_are_resolved_at_the_first_page(made):
    """``15s`` at the first page means an instant; the cursor carries it."""
    with whence.open(made.folder) as opened:
        now = [T / 1000 + 29]
        store = Store(opened.stores, clock=lambda: now[0])
        first = store.find(key="k", since="10s", limit=4)
        assert first.question.since_ms == T + 19_000
        now[0] += 7
        second = store.find(key="k", since="10s", limit=100, cursor=first.cursor)
        assert second.question.since_ms == T + 19_000
        assert offsets(first) + offsets(second) == made.offsets[:18:-1]
        assert store.find(key="k", since="10s").question.since_ms == T + 26_000


@pytest.mark.parametrize(
    "other",
    [
        {"key": "j"},
        {"key": ["k", "j"]},
        {"key": "k", "topic": "T"},
        {"key": "k", "since": 5},
        {"key": "k", "until": T},
        {"key": "k", "tag": "t"},
        {"key": "k", "oldest_first": True},
        {"key": "k", "system_topics": True},
        {"id": "k"},
        {"topic": "T"},
        {},
    ],
)
def test_it_belongs_to_one_question(made, other):
    with whence.open(made.folder) as store:
        cursor = store.find(key="k", limit=3).cursor
        with pytest.raises(UsageError, match="another question"):
            store.find(cursor=cursor, **other)


def test_it_belongs_to_as_many_stores(tmp_path):
    make_store(tmp_path / "a", MESSAGES)
    make_store(tmp_path / "b", MESSAGES)
    with whence.open(tmp_path / "a") as one, open_stores([tmp_path / "a", tmp_path / "b"]) as two:
        with pytest.raises(UsageError, match="2 stores"):
            one.find(key="k", cursor=two.find(key="k", limit=1).cursor)
        with pytest.raises(UsageError, match="1 store"):
            two.find(key="k", cursor=one.find(key="k", limit=1).cursor)


QUESTION = make_question(now_ms=T, key="k")
CURSOR = encode_cursor(QUESTION, (4711,))


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "x",
        "no cursor",
        CURSOR[:-1],
        CURSOR[1:],
        CURSOR[:10],
        CURSOR + "A",
        CURSOR + "AAAA",
        "B" + CURSOR[1:],  # another version
        CURSOR[:-4] + "____",
        CURSOR.replace(CURSOR[5], "!", 1),
        "é" * 60,
        "A" * 100_000,
    ],
)
def test_a_damaged_one_is_wrong_use(made, damaged):
    with whence.open(made.folder) as store, pytest.raises(UsageError) as error:
        store.find(key="k", cursor=damaged)
    assert len(str(error.value)) < 300


def test_one_changed_letter_is_noticed():
    """Or it goes on from another place than the page before ended at, and nobody knows."""
    right = decode_cursor(CURSOR, QUESTION, 1)
    taken = []
    for at in range(len(CURSOR)):
        for letter in "AQz9-":
            changed = CURSOR[:at] + letter + CURSOR[at + 1 :]
            try:
                cursor = decode_cursor(changed, QUESTION, 1)
            except UsageError:
                continue
            if cursor != right:  # the last letter has bits that mean nothing
                taken.append(changed)
    assert taken == []


@given(st.text(max_size=80))
def test_any_text_is_a_cursor_or_wrong_use(text):
    try:
        decode_cursor(text, QUESTION, 1)
    except UsageError:
        return
    assert text.rstrip("=") == CURSOR


@given(
    positions=st.lists(st.integers(-1, 2**63 - 1), min_size=1, max_size=5).map(tuple),
    since=st.none() | st.integers(-(2**62), 2**62),
    until=st.none() | st.integers(-(2**62), 2**62),
)
def test_positions_and_window_come_back(positions, since, until):
    if since is not None and until is not None and since > until:
        since, until = until, since
    question = make_question(now_ms=T, key="k", since=since, until=until)
    cursor = decode_cursor(encode_cursor(question, positions), question, len(positions))
    assert (cursor.since_ms, cursor.until_ms, cursor.positions) == (since, until, positions)
