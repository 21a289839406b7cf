"""Questions by field: what the index of a field gives is what the expression gives, or the receipt says why not."""

import json
import shutil
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whence
from tests.field_maker import index_field
from tests.lookup.judge import offsets
from tests.store_maker import T, make_store, message
from whence.errors import CorruptError, UsageError
from whence.store.field_index import FieldCover


def values(record):
    """What the field of these tests is: the words of the body."""
    return record.stored_body.decode().split()


def store_of(folder, messages, *, indexed=None, items=20, **settings):
    made = make_store(folder / "store", messages, items=items, **settings)
    index_field(made, "city", values, indexed=indexed, items=items)
    return made


def ask(made, **question):
    with whence.open(made.folder) as store:
        return store.find(**question)


def with_value(made, value, **members):
    """Where the messages lie that have this value, newest first."""
    found = [record for record in made.records if value in values(record) and not record.is_rollback]
    found = [each for each in found if all(getattr(each, name) == wanted for name, wanted in members.items())]
    return [record.physical_offset for record in reversed(found)]


CITIES = [b"Paris", b"Aa", b"BB", b"", b"Paris Rome", b"Rome", b"x#y"]
MESSAGES = [
    message(
        body=CITIES[number % len(CITIES)],
        at=1000 * number,
        topic=f"T{number % 2}",
        tags="even" if number % 2 == 0 else "odd",
        keys=f"k{number % 10}",
        unique_id=f"id-{number}",
    )
    for number in range(100)
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return store_of(tmp_path_factory.mktemp("fields"), MESSAGES)


@pytest.mark.parametrize("city", ["Paris", "Rome", "Aa", "BB", "x#y", "paris", "nowhere"])
def test_a_value_is_found_in_every_topic_newest_first(made, city):
    answer = ask(made, field=f"city={city}", limit=None)
    assert offsets(answer) == with_value(made, city)
    receipt = answer.receipt
    assert receipt.complete and not receipt.damage
    assert receipt.verified_by == "value_hash"
    assert receipt.index_source == "whence"
    assert receipt.indexed_to_offset == made.end_offset
    assert receipt.indexed_to_timestamp_ms == T + 99_000
    assert (receipt.scanned_bytes, receipt.rejected) == (0, 0)
    assert receipt.why_empty == (None if answer.messages else "no_such_key")


def test_a_value_of_another_text_with_the_same_hash_is_no_candidate(made):
    answer = ask(made, field="city=Aa", limit=None)
    assert answer.receipt.candidates == len(answer)
    assert answer.receipt.items_visited > 2 * len(answer)


def test_a_field_is_asked_in_the_forms_of_command_line_and_python(made):
    forms = ["city=Rome", {"city": "Rome"}, ["city=Rome"], ["city=Rome", "city=Rome"]]
    answers = [ask(made, field=form) for form in forms]
    assert len({tuple(offsets(answer)) for answer in answers}) == 1
    assert [answer.to_dict()["question"]["field"] for answer in answers] == ["city=Rome"] * 4


def test_other_members_of_the_question_count_as_well(made):
    assert offsets(ask(made, field="city=Rome", topic="T1")) == with_value(made, "Rome", topic="T1")
    window = ask(made, field="city=Rome", since=T + 20_000, until=T + 60_000)
    assert offsets(window) == [
        offset for offset in with_value(made, "Rome") if 20 <= made.offsets.index(offset) <= 60
    ]
    keyed = ask(made, field="city=Rome", key="k4")
    assert offsets(keyed) == [offset for offset in with_value(made, "Rome") if made.offsets.index(offset) % 10 == 4]
    place = with_value(made, "Rome")[3]
    assert offsets(ask(made, field="city=Rome", offset=place)) == [place]
    assert offsets(ask(made, field="city=Rome", id=f"id-{made.offsets.index(place)}")) == [place]
    assert offsets(ask(made, field="city=Rome", oldest_first=True, limit=None)) == with_value(made, "Rome")[::-1]


@pytest.mark.parametrize("oldest_first", [False, True])
def test_pages_follow_on_each_other(made, oldest_first):
    found, cursor = [], None
    for _ in range(20):
        answer = ask(made, field="city=Paris", limit=3, cursor=cursor, oldest_first=oldest_first)
        found += offsets(answer)
        cursor = answer.cursor
        if cursor is None:
            break
    assert found == with_value(made, "Paris")[:: -1 if oldest_first else 1]


def test_of_several_fields_all_have_to_have_their_values(tmp_path):
    made = store_of(tmp_path, MESSAGES)
    index_field(made, "second", lambda record: [str(record.physical_offset // 1000)])
    for place, city, oldest_first in product(range(0, 20, 3), ("Paris", "Rome"), (False, True)):
        answer = ask(made, field={"city": city, "second": str(place)}, oldest_first=oldest_first)
        expected = [offset for offset in with_value(made, city) if offset // 1000 == place]
        assert offsets(answer) == expected[:: -1 if oldest_first else 1]
        assert answer.receipt.complete
    assert answer.to_dict()["question"]["fields"] == ["city=Rome", f"second={place}"]


def test_an_empty_value_is_a_value(tmp_path):
    made = make_store(tmp_path / "store", MESSAGES)
    index_field(made, "body", lambda record: [record.stored_body.decode()])
    expected = [record.physical_offset for record in reversed(made.records) if not record.stored_body]
    assert offsets(ask(made, field="body=", limit=None)) == expected


def test_a_field_that_no_message_has_covers_the_log_all_the_same(tmp_path):
    made = make_store(tmp_path / "store", MESSAGES)
    index_field(made, "none", lambda record: [])
    receipt = ask(made, field="none=x").receipt
    assert receipt.complete and receipt.why_empty == "no_such_key"


def test_topic_and_value_that_read_like_others_are_told_apart(tmp_path):
    """``a`` with value ``b#c`` has the text, and so the hash, of ``a#b`` with value ``c``."""
    made = store_of(tmp_path, [message(topic="a", body=b"b#c"), message(topic="a#b", body=b"c")])
    assert offsets(ask(made, field="city=b#c", topic="a")) == [made.offsets[0]]
    assert offsets(ask(made, field="city=c", topic="a#b")) == [made.offsets[1]]
    assert offsets(ask(made, field="city=c")) == [made.offsets[1]]


def test_records_with_rollback_bits_have_no_fields(tmp_path):
    made = store_of(tmp_path, [message(body=b"Rome", sys_flag=0xC), message(body=b"Rome")])
    assert offsets(ask(made, field="city=Rome")) == made.offsets[1:]


def test_system_topics_are_left_out_unless_they_are_asked_for(tmp_path):
    made = store_of(tmp_path, [message(body=b"Rome", topic="SCHEDULE_TOPIC_XXXX"), message(body=b"Rome")])
    assert offsets(ask(made, field="city=Rome")) == made.offsets[1:]
    assert offsets(ask(made, field="city=Rome", system_topics=True)) == made.offsets[::-1]
    assert offsets(ask(made, field="city=Rome", topic="SCHEDULE_TOPIC_XXXX")) == made.offsets[:1]


# Why nothing is found


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ({"field": "city=Oslo"}, "no_such_key"),
        ({"field": "city=Rome", "topic": "absent"}, "no_such_topic"),
        ({"field": "city=Rome", "since": T + 10**9}, "outside_window"),
        ({"field": "city=Rome", "tag": "neither"}, "filtered"),
        ({"field": "city=Oslo", "key": "k4"}, "filtered"),
        ({"field": "city=Oslo", "offset": 0}, "filtered"),
        ({"field": "city=Rome", "key": "absent"}, "no_such_key"),
        ({"field": "city=Rome", "offset": 10**9}, "beyond_end"),
    ],
)
def test_a_receipt_tells_why_nothing_was_found(made, question, why):
    answer = ask(made, **question)
    assert offsets(answer) == []
    assert answer.receipt.complete
    assert answer.receipt.why_empty == why


def test_values_of_messages_that_have_expired_are_told(tmp_path):
    made = store_of(tmp_path, [message(body=b"Oslo"), *MESSAGES])
    made.log_files[0].unlink()
    answer = ask(made, field="city=Oslo")
    assert (offsets(answer), answer.receipt.why_empty, answer.receipt.complete) == ([], "probably_expired", True)
    begin = int(made.log_files[0].name)
    found = ask(made, field="city=Paris", limit=None)
    assert offsets(found) == [offset for offset in with_value(made, "Paris") if offset >= begin]
    assert found.receipt.complete


# What is not indexed


def test_what_was_appended_since_makes_the_answer_incomplete(tmp_path):
    made = store_of(tmp_path, MESSAGES, indexed=60)
    answer = ask(made, field="city=Rome", limit=None)
    assert offsets(answer) == [offset for offset in with_value(made, "Rome") if offset < made.offsets[60]]
    assert not answer.receipt.complete and not answer.receipt.damage
    assert answer.receipt.indexed_to_offset == made.offsets[60]
    assert ask(made, field="city=Oslo").receipt.why_empty == "not_indexed"
    refused = ask(made, field="city=Oslo", no_scan=True).receipt
    assert (refused.why_empty, refused.scanned_bytes) == ("not_indexed", 0)


def test_the_answer_is_complete_where_what_is_not_indexed_cannot_match(tmp_path):
    made = store_of(tmp_path, MESSAGES, indexed=60)
    answer = ask(made, field="city=Rome", until=T + 59_000, limit=None)
    assert answer.receipt.complete
    assert offsets(answer) == [offset for offset in with_value(made, "Rome") if offset < made.offsets[60]]
    assert ask(made, field="city=Rome", topic="T0", queue=3).receipt.complete
    assert ask(made, field="city=Rome", key="absent").receipt.complete
    assert not ask(made, field="city=Rome", key="k1").receipt.complete


def test_a_page_is_complete_up_to_where_the_log_is_not_indexed(tmp_path):
    made = store_of(tmp_path, MESSAGES, indexed=60)
    first = ask(made, field="city=Rome", limit=2, oldest_first=True)
    assert first.receipt.complete and first.receipt.truncated
    assert not ask(made, field="city=Rome", limit=2).receipt.complete


def test_the_sidecar_of_another_log_covers_nothing(tmp_path):
    made = store_of(tmp_path, MESSAGES)
    other = make_store(tmp_path / "other", [message(body=b"Rome", at=7, tags="t") for _ in range(100)])
    shutil.copytree(tmp_path / "store.whence", tmp_path / "other.whence")
    answer = ask(other, field="city=Rome")
    assert offsets(answer) == [] and not answer.receipt.complete
    assert answer.receipt.why_empty == "not_indexed"
    assert offsets(ask(made, field="city=Rome")) != []


# Wrong use


def test_a_field_that_is_not_indexed_is_wrong_use(made, tmp_path):
    with pytest.raises(UsageError, match=r"no field town is indexed, the fields are city; whence build .* --field"):
        ask(made, field="town=Rome")
    bare = make_store(tmp_path / "bare", MESSAGES[:2])
    with pytest.raises(UsageError, match="no field city is indexed, none is"):
        ask(bare, field="city=Rome")


@pytest.mark.parametrize("name", ["", "City", "a/b", "..", "-a", "a b", "é", "a" * 65, "a\n"])
def test_a_name_that_no_field_can_have_never_becomes_a_path(made, name):
    with pytest.raises(UsageError, match="names no field"):
        ask(made, field=f"{name}=x")


@pytest.mark.parametrize("field", ["city", "", ["city=x", "y"], {"city": 7}, {"city": "\ud800"}])
def test_what_asks_for_no_field_is_wrong_use(made, field):
    with pytest.raises(UsageError):
        ask(made, field=field)


def test_a_sidecar_that_cannot_be_read_is_told(tmp_path):
    made = store_of(tmp_path, MESSAGES)
    (tmp_path / "store.whence/sidecar.json").write_text("{")
    with pytest.raises(CorruptError, match="is not what whence wrote"):
        ask(made, field="city=Rome")


# Damage


def check_honest(made, city="Rome"):
    """Nothing wrong is found; and all, if the answer says so. Whether it does."""
    answer = ask(made, field=f"city={city}", limit=None)
    expected = with_value(made, city)
    assert set(offsets(answer)) <= set(expected)
    if answer.receipt.complete:
        assert offsets(answer) == expected
    else:
        assert answer.receipt.damaged
    return answer.receipt


def files_of(made, kind):
    return sorted((made.folder.with_name("store.whence") / "fields/city" / kind).iterdir())


@pytest.mark.parametrize("kind", ["index", "values"])
@pytest.mark.parametrize("number", [0, 2, -1])
@pytest.mark.parametrize("how", ["gone", "cut", "empty"])
def test_a_file_that_is_gone_or_cut_leaves_its_part_unanswered(tmp_path, kind, number, how):
    made = store_of(tmp_path, MESSAGES)
    path = files_of(made, kind)[number]
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if how == "cut" else b"")
    receipt = check_honest(made)
    assert not receipt.complete
    assert [damage.path for damage in receipt.damage] == [str(path)]
    assert receipt.why_empty is None


def test_a_damaged_header_leaves_its_part_unanswered(tmp_path):
    made = store_of(tmp_path, MESSAGES)
    for path, place in product(files_of(made, "index"), range(0, 40, 3)):
        data = path.read_bytes()
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        check_honest(made)
        path.write_bytes(data)
    assert check_honest(made).complete


@pytest.mark.slow
def test_no_changed_byte_of_an_index_file_makes_a_wrong_hit(tmp_path):
    """What is missing because of it is for verify to find, as with any index file."""
    made = store_of(tmp_path, MESSAGES)
    path = files_of(made, "index")[1]
    data = path.read_bytes()
    expected = set(with_value(made, "Rome"))
    for place in range(40, len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        assert set(offsets(ask(made, field="city=Rome", limit=None))) <= expected


def test_a_damaged_chain_leaves_the_rest_of_the_files_in_use(tmp_path):
    made = store_of(tmp_path, MESSAGES)
    path = files_of(made, "index")[1]
    data = path.read_bytes()
    path.write_bytes(data[:40] + b"\x7f" * 28 + data[68:])  # all slots
    receipt = check_honest(made)
    assert not receipt.complete
    assert receipt.index_files == len(files_of(made, "index")) > 3


def test_a_file_that_is_mended_is_used_again_by_a_store_that_stays_open(tmp_path):
    made = store_of(tmp_path, MESSAGES)
    path = files_of(made, "index")[1]
    data = path.read_bytes()
    with whence.open(made.folder) as store:
        path.unlink()
        assert not store.find(field="city=Rome").receipt.complete
        path.write_bytes(data)
        assert offsets(store.find(field="city=Rome", limit=None)) == with_value(made, "Rome")


def test_a_newest_file_that_a_build_has_gone_on_with_serves_until_it_says_so(tmp_path):
    """Between its rename and that of sidecar.json a file has more items than were noted."""
    made = store_of(tmp_path, MESSAGES, indexed=62)
    whole = make_store(tmp_path / "whole/store", MESSAGES)
    index_field(whole, "city", values)
    for path in (tmp_path / "whole/store.whence/fields/city").rglob("*"):
        if path.is_file():
            shutil.copy(path, tmp_path / "store.whence" / path.relative_to(tmp_path / "whole/store.whence"))
    answer = ask(made, field="city=Rome", limit=None)
    assert offsets(answer) == [offset for offset in with_value(made, "Rome") if offset < made.offsets[62]]
    assert not answer.receipt.damage


@given(
    covered=st.lists(st.integers(0, 60), max_size=8).map(sorted),
    span=st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted),
)
def test_what_is_not_covered_is_the_rest(covered, span):
    stretches = tuple(zip(covered[::2], covered[1::2], strict=False))
    cover = FieldCover((), stretches, 0, ())
    left = cover.uncovered(*span)
    told = {offset for begin, end in left for offset in range(begin, end)}
    assert told == {offset for offset in range(*span) if not cover.covers(offset)}
    assert all(begin < end for begin, end in left)


def test_the_walk_can_be_explained(made):
    with whence.open(made.folder) as store:
        explanation = store.explain(field="city=Rome", topic="T0")
    assert list(explanation.hashes.values()) == [["T0#Rome"]]
    assert {step.name for step in explanation.steps} >= {"index_file", "item", "verified"}
    json.dumps(explanation.to_dict())


def test_fields_of_several_stores_are_one_answer(tmp_path):
    first, second = store_of(tmp_path / "a", MESSAGES[:50]), store_of(tmp_path / "b", MESSAGES[50:])
    from whence.door import open_stores

    with open_stores([first.folder, second.folder]) as stores:
        answer = stores.find(field="city=Rome", limit=None)
    assert len(answer) == len(with_value(first, "Rome")) + len(with_value(second, "Rome"))
    assert answer.receipt.complete and answer.receipt.verified_by == "value_hash"


def test_fields_lie_in_the_sidecar_beside_the_rest(made):
    folder = Path(f"{made.folder}.whence/fields/city")
    assert [path.name for path in files_of(made, "values")] == [path.name for path in files_of(made, "index")]
    assert folder.is_dir()
