"""Files that are not what a store should hold: wrong kinds, names, sizes and numbers of files."""

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import whence
from tests.golden import GoldenStore
from tests.hostile.forge import (
    FILE_SIZE,
    edit,
    in_child,
    message,
    numbered,
    within,
    write_index,
    write_log,
    write_queues,
)
from tests.hostile.mutations import Special, write
from tests.reference import IndexFileTwin, Record, i32, i64
from whence.errors import CorruptError, NotFoundError, StoreError, WhenceError
from whence.lookup.answer import Answer
from whence.store.inspection import Kind, inspect_file

MIB = 1048576
QUESTIONS: list[dict[str, object]] = [
    {"key": "k7"},
    {"key": "k7", "topic": "TopicTest"},
    {"key": "k7", "scan": True},
    {"id": "k7"},
    {"offset": 0},
    {"topic": "TopicTest", "queue": 0, "queue_offset": 7},
    {"since": 0},
]
"""To a store of :func:`whole_store`; the first four are answered by message 7."""
INCOMPLETE = "incomplete"


def whole_store(folder: Path, count: int = 50) -> tuple[Path, list[Record]]:
    store = folder / "store"
    records = write_log(store, numbered([message(f"k{number}") for number in range(count)]))
    write_index(store, records)
    write_queues(store, records)
    return store, records


def ask_all(store: Path) -> list[object]:
    """Newest keys of complete answers, types of errors; anything but an answer or a WhenceError fails the test."""
    outcomes: list[object] = []
    with whence.open(store) as opened:
        for question in QUESTIONS:
            try:
                answer = opened.find(**question)
                opened.explain(**question)
                outcomes.append([m.keys[0] for m in answer][:1] if answer.receipt.complete else INCOMPLETE)
            except WhenceError as error:
                assert str(store) in str(error)
                outcomes.append(type(error))
    return outcomes


@pytest.mark.parametrize("special", Special)
@pytest.mark.parametrize("name", ["commitlog/" + "0" * 20, "commitlog/" + f"{FILE_SIZE:020d}"])
def test_log_file_of_another_kind_is_named(tmp_path: Path, special: Special, name: str):
    store, _ = whole_store(tmp_path)
    write(store, {name: special})
    with within(5):
        try:
            ask_all(store)
        except WhenceError as error:
            assert str(store) in str(error)


@pytest.mark.parametrize("special", Special)
def test_index_file_of_another_kind_is_passed_over(tmp_path: Path, special: Special):
    store, _ = whole_store(tmp_path)
    for path in (store / "index").iterdir():
        write(store, {f"index/{path.name}": special, "index/1": special})
    with within(5):
        assert ask_all(store)[:4] == [["k7"]] * 4


@pytest.mark.parametrize("special", Special)
def test_queue_file_of_another_kind_is_passed_over_or_named(tmp_path: Path, special: Special):
    store, _ = whole_store(tmp_path)
    write(store, {f"consumequeue/TopicTest/0/{'0' * 20}": special})
    with within(5):
        outcomes = ask_all(store)
        assert outcomes[:4] == [["k7"]] * 4
        assert outcomes[5] in (["k7"], StoreError, NotFoundError, CorruptError)


@pytest.mark.parametrize(
    "folder", ["index", "consumequeue", "config", "consumequeue/TopicTest", "consumequeue/TopicTest/0"]
)
@pytest.mark.parametrize("special", [Special.PIPE, Special.LOOP, Special.NOWHERE, Special.ENDLESS, b"a file"])
def test_folder_of_another_kind_is_as_good_as_none(tmp_path: Path, folder: str, special: Special | bytes):
    store, _ = whole_store(tmp_path)
    (store / folder).rename(tmp_path / "away") if (store / folder).exists() else None
    write(store, {folder: special})
    with within(5):
        outcomes = ask_all(store)
        assert outcomes[1:3] == [["k7"]] * 2
        # Without the queues' folders nobody knows the topics, of which the index needs one.
        assert outcomes[0] in (["k7"], INCOMPLETE) and outcomes[3] in (["k7"], INCOMPLETE)


@pytest.mark.parametrize("special", [Special.PIPE, Special.LOOP, Special.NOWHERE, b"a file"])
def test_store_whose_log_is_no_folder_is_refused(tmp_path: Path, special: Special | bytes):
    write(tmp_path, {"store/commitlog": special})
    with pytest.raises(NotFoundError, match="commitlog"):
        whence.open(tmp_path / "store")


def test_store_without_log_files_is_empty(tmp_path: Path):
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    assert ask_all(tmp_path / "store") == [[]] * len(QUESTIONS)


def test_log_of_zeros_is_empty(tmp_path: Path):
    write(
        tmp_path,
        {"store/commitlog/" + "0" * 20: bytes(FILE_SIZE), "store/commitlog/" + f"{FILE_SIZE:020d}": bytes(FILE_SIZE)},
    )
    with whence.open(tmp_path / "store") as opened:
        answer = opened.find(since=0)
        assert list(answer) == [] and answer.receipt.complete and answer.receipt.damage == []


def test_log_file_of_no_bytes_is_empty(tmp_path: Path):
    write(tmp_path, {"store/commitlog/" + "0" * 20: b""})
    assert ask_all(tmp_path / "store") == [[]] * len(QUESTIONS)


@pytest.mark.parametrize(
    "name",
    ["9" * 20, str(2**63).zfill(20), "1" * 19, "2" * 21, "٠" * 20, "0x000000000000000000", "-0000000000000000001"],
)
def test_name_that_is_no_offset_is_passed_over(tmp_path: Path, name: str):
    store, _ = whole_store(tmp_path)
    before = ask_all(store)
    write(store, {f"commitlog/{name}": b"x" * FILE_SIZE, f"consumequeue/TopicTest/0/{name}": b"x" * 2000})
    assert ask_all(store) == before


@pytest.mark.parametrize("base", [2**62, 2**63 - 4 * FILE_SIZE, 10**18])
def test_log_at_huge_offsets_is_read(tmp_path: Path, base: int):
    store = tmp_path / "store"
    records = write_log(store, numbered([message(f"k{n}", bytes(900)) for n in range(200)]), base=base)
    write_index(store, records)
    write_queues(store, records)
    with whence.open(store) as opened:
        for question in (
            {"key": "k7"},
            {"key": "k7", "scan": True},
            {"topic": "TopicTest", "queue": 0, "queue_offset": 7},
        ):
            answer = opened.find(**question)
            assert [m.physical_offset for m in answer] == [records[7].physical_offset] and answer.receipt.complete
        page = opened.find(since=0, limit=150)
        assert len(page) + len(opened.find(since=0, limit=150, cursor=page.cursor)) == 200


def test_file_at_the_highest_offset_there_is(tmp_path: Path):
    store, _ = whole_store(tmp_path)
    write(store, {f"commitlog/{2**63 - 1:020d}": bytes(FILE_SIZE)})
    with within(5):
        try:
            assert ask_all(store)[2] == ["k7"]
        except WhenceError as error:
            assert str(store) in str(error)


@pytest.mark.parametrize("size", [1, 7, 8, 90, 91, 1000, FILE_SIZE - 1, FILE_SIZE + 1, 3 * FILE_SIZE])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_log_file_of_another_length_hides_nothing_in_silence(tmp_path: Path, number: int, size: int):
    """Three files; one of them is cut or has bytes too many."""
    store = tmp_path / "store"
    records = write_log(store, [message(f"k{n}", bytes(900)) for n in range(180)])
    path = sorted((store / "commitlog").iterdir())[number]
    path.write_bytes(path.read_bytes()[:size].ljust(size, b"\0"))
    kept = {r.physical_offset for r in records if r.physical_offset // FILE_SIZE != number}
    with whence.open(store) as opened:
        try:
            answer = opened.find(since=0, limit=None)
        except CorruptError as error:
            assert error.path == str(path) and error.position is not None
            return
    found = {m.physical_offset for m in answer}
    is_whole = found == {r.physical_offset for r in records}
    assert found >= kept or not answer.receipt.complete
    assert is_whole or not answer.receipt.complete or number == 2


@pytest.mark.parametrize(
    "name", ["störe", "new\nline", "\x1b[31mred", "sp ace'\"$(x)", "a" * 200, "\udcff\udcfe", "%2e%2e", "-rf"]
)
def test_store_may_have_any_name(tmp_path: Path, name: str):
    (tmp_path / name).mkdir()
    store, _ = whole_store(tmp_path / name)
    assert ask_all(store)[:4] == [["k7"]] * 4
    with whence.open(str(store)) as opened:
        assert len(opened.find(key="k7")) == 1


def as_nobody(function: Callable[[], list[object]]) -> list[object]:
    """What a user without rights gets; as root nothing is ever forbidden."""

    def run() -> list[object]:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setegid(65534)
            os.seteuid(65534)
        return function()

    result: list[object] = in_child(run)
    return result


@pytest.fixture
def open_folders(tmp_path: Path) -> Path:
    """A folder that another user can reach."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(folder.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "",
        "commitlog",
        "commitlog/" + "0" * 20,
        "index",
        "index/20231114000000000",
        "consumequeue",
        "consumequeue/TopicTest",
        "consumequeue/TopicTest/0",
        f"consumequeue/TopicTest/0/{'0' * 20}",
        "config",
        "config/topics.json",
        "checkpoint",
    ],
)
def test_what_may_not_be_read_is_an_error_of_ours_or_not_needed(open_folders: Path, name: str):
    store, _ = whole_store(open_folders)
    write(store, {"config/topics.json": b'{"topicConfigTable":{"TopicTest":{}}}', "checkpoint": bytes(4096)})
    (store / name).chmod(0)

    def ask() -> list[object]:
        try:
            return ask_all(store)
        except WhenceError as error:
            assert str(store) in str(error)
            return []

    try:
        outcomes = as_nobody(ask)
    finally:
        (store / name).chmod(0o755)
    if name.startswith(("index", "consumequeue", "config", "checkpoint")):
        assert outcomes[1:3] == [["k7"]] * 2
        assert outcomes[0] in (["k7"], INCOMPLETE) and outcomes[3] in (["k7"], INCOMPLETE)


def test_thousands_of_index_files_do_not_use_up_the_open_files(tmp_path: Path):
    store = tmp_path / "store"
    records = write_log(store, [message(f"k{number}") for number in range(600)], 16 * FILE_SIZE)
    files = write_index(store, records, slots=2, items=3)
    assert len(files) == 300

    def ask() -> list[object]:
        with whence.open(store) as opened:
            answer = opened.find(key="k7", topic="TopicTest")
            return [[m.keys for m in answer], answer.receipt.complete, answer.receipt.scanned_bytes]

    assert in_child(ask, files=128) == [[("k7",)], True, 0]


def test_thousands_of_log_and_queue_files_do_not_use_up_the_open_files(tmp_path: Path):
    store = tmp_path / "store"
    records = numbered([message(f"k{number}", bytes(700), queue=number % 300) for number in range(600)])
    records = write_log(store, records, 2048)
    write_queues(store, records)

    def ask() -> list[object]:
        with whence.open(store) as opened:
            found = [opened.find(key=f"k{n}").messages[0].keys for n in range(0, 600, 50)]
            queued = [len(opened.find(topic="TopicTest", queue=q, queue_offset=1)) for q in range(300)]
            return [len(found), sum(queued)]

    assert in_child(ask, files=400) == [12, 300]


# Index files whose header or links lie


def lying_index(folder: Path, size: int, header: bytes) -> Path:
    """A store and an index file of zeros, of this length, behind this header; the file is one hole."""
    store = folder / "store"
    write_log(store, [message(f"k{number}") for number in range(50)])
    (store / "index").mkdir()
    path = store / "index" / "20231114000000000"
    path.write_bytes(header)
    os.truncate(path, size)
    return store


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 1000, 10_000_000, 2**31 - 1])
@pytest.mark.parametrize("end_offset", [0, 1])
@pytest.mark.parametrize("size", [420_000_040, 2**31])
def test_shape_of_an_index_file_of_zeros_is_not_searched_for_long(
    tmp_path: Path, size: int, end_offset: int, count: int
):
    store = lying_index(tmp_path, size, i64(1) + i64(2) + i64(0) + i64(end_offset) + i32(1) + i32(count))

    def ask() -> int:
        with whence.open(store) as opened:
            return sum(len(opened.find(key=f"k{n}", topic="TopicTest")) for n in range(10))

    with within(60):  # 4 s alone
        assert in_child(ask, memory=size + 512 * MIB) == 10


@pytest.mark.parametrize("offset", [-1, -(2**63), 2**63 - 1, 2**62])
def test_item_that_leads_nowhere_is_no_message_and_no_crash(tmp_path: Path, offset: int):
    store, _ = whole_store(tmp_path)
    path = next((store / "index").iterdir())
    file = IndexFileTwin.from_bytes(path.read_bytes(), 97, 400)
    for item in list(file.items.values())[:-1]:
        item.physical_offset = offset
    path.write_bytes(file.to_bytes())
    with whence.open(store) as opened:
        for number in (0, 7, 48):
            answer = opened.find(key=f"k{number}", topic="TopicTest")
            assert all(m.keys == (f"k{number}",) for m in answer)
        assert opened.find(key="k7", scan=True).receipt.complete


@pytest.mark.parametrize("field", range(6))
@pytest.mark.parametrize("value", [0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)])
def test_header_field_that_lies_hides_nothing(tmp_path: Path, field: int, value: int):
    """A header tells the times and offsets of its ends: who does not fit the log or the items is not believed."""
    store, _ = whole_store(tmp_path)
    path = next((store / "index").iterdir())
    at, size = ((0, 8), (8, 8), (16, 8), (24, 8), (32, 4), (36, 4))[field]
    edit(path, at, (value % 2 ** (8 * size)).to_bytes(size, "big"))
    with whence.open(store) as opened:
        for number in (0, 1, 7, 48, 49):
            answer = opened.find(key=f"k{number}", topic="TopicTest")
            assert [m.keys for m in answer] == [(f"k{number}",)] and answer.receipt.complete


def test_golden_log_with_bytes_appended_to_its_last_file(tmp_path: Path, golden: Callable[[str], GoldenStore]):
    """The names of its files say how long each is; the last one has no next name, only its length."""
    store = golden("v5-direct").copy(tmp_path)
    last = max((store / "commitlog").iterdir())
    last.write_bytes(last.read_bytes() + bytes(100))
    try:
        with whence.open(store) as opened:
            assert opened.find(since=0).receipt.complete
    except CorruptError as error:
        assert error.path == str(last) and error.position is not None


@pytest.mark.slow
@pytest.mark.parametrize("kind", Kind)
def test_inspect_takes_bounded_memory(tmp_path: Path, kind: Kind):
    """Of a file of 4 GiB, all hole, and of one that a broker's setting of file sizes could make."""
    path = tmp_path / ("0" * 20)
    path.touch()
    os.truncate(path, 2**32)

    def inspect() -> str:
        try:
            return inspect_file(path, kind=kind).kind
        except WhenceError as error:
            return str(error)

    with within(15):
        assert in_child(inspect, memory=2**32 + 512 * MIB) is not None


# Files that go while a question is answered

VANISHING: tuple[dict[str, object], ...] = (
    {"since": 0, "limit": None},
    {"key": "k5"},
    {"key": "k5", "scan": True},
    {"key": "k5", "topic": "TopicTest"},
)


def find_while_files_vanish(folder: Path, first: int, last: int, question: dict[str, object]) -> Answer:
    """Ask a log of 86 files that no index covers; as soon as the newest is scanned, some others are deleted."""
    store = folder / "store"
    write_log(store, [message(f"k{number}", bytes(1000)) for number in range(600)], 8192)
    files = sorted((store / "commitlog").iterdir())

    def delete(scanned: int, total: int) -> None:
        for path in files[first:last]:
            path.unlink(missing_ok=True)

    with whence.open(store) as opened:
        return opened.find(progress=delete, **question)


@pytest.mark.parametrize("question", VANISHING)
def test_files_that_expire_during_a_search_were_not_searched(tmp_path: Path, question: dict[str, object]):
    """As a broker deletes them, oldest first. The answer is that of a question put a moment later."""
    answer = find_while_files_vanish(tmp_path, 0, 20, question)
    assert answer.receipt.searched_from_offset == 20 * 8192 or not answer.receipt.complete
    assert all(message.physical_offset >= 20 * 8192 for message in answer)


@pytest.mark.parametrize("question", VANISHING)
def test_files_that_vanish_during_a_search_are_a_gap(tmp_path: Path, question: dict[str, object]):
    answer = find_while_files_vanish(tmp_path, 20, 22, question)
    assert not answer.receipt.complete
    assert "gap" in {damage.kind for damage in answer.receipt.damage}
