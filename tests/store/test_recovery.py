"""What is kept and what is cut when a store is opened to be written."""

import shutil
from dataclasses import replace
from typing import Any

import pytest

import whence
from tests.disks import UnflushedDisk
from tests.golden import ALL, CRASHED
from tests.reference import encode_record
from tests.store_maker import log_bytes, make_store, message, place
from whence.store.commit_log import CommitLog
from whence.store.dispatch import dispatch_log
from whence.store.ownership import Ownership, read_ownership

SIZES = {"file_size": 4096, "queue_file_size": 200, "slots": 7, "items": 20}


def ownership_of(folder) -> Ownership:
    ownership = read_ownership(folder)
    assert ownership is not None
    return ownership


def create(folder, **options):
    return whence.create(folder, disk=UnflushedDisk(), **{**SIZES, **options})


def adopt(folder, **options):
    return whence.create(folder, adopt=True, disk=UnflushedDisk(), **options)


def contents(folder):
    """Every file below a folder, by its name there. Index files count by their order, for their names are times."""
    return [path.read_bytes() for path in sorted((folder / "index").glob("*"))], {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted((folder / "consumequeue").rglob("*"))
        if path.is_file()
    }


def dispatched_anew(folder, target):
    """Index and queues as they come out of the log of a store, into an empty folder."""
    settings = ownership_of(folder).settings
    log = CommitLog(*settings.log_paths(folder))
    dispatch_log(
        log,
        target,
        slots=settings.slots,
        items=settings.items,
        queue_file_size=settings.queue_file_size,
        dialect=settings.dialect,
        disk=UnflushedDisk(),
    )
    log.close()
    return contents(target)


@pytest.fixture
def crashed(tmp_path):
    """Takes a function that fills a store, gives the folder as a killed process leaves it: copied while open."""

    def crash(fill, **options):
        with create(tmp_path / "open", **options) as store:
            fill(store)
            shutil.copytree(tmp_path / "open", tmp_path / "store")
        return tmp_path / "store"

    return crash


def keys(count, at=0):
    return [message(keys=f"key-{number}", tags="t", at=number) for number in range(at, at + count)]


@pytest.mark.parametrize("name", ALL)
def test_a_broker_s_store_is_taken_over_and_every_message_is_found(tmp_path, golden, name):
    folder = golden(name).copy(tmp_path)
    with adopt(folder) as store:
        log = store.stores[0].commit_log
        messages = list(log.messages(log.begin_offset, log.end_offset()))
        for one in messages[:: max(1, len(messages) // 40)]:
            for key in one.keys:
                found = store.find(key=key, topic=one.topic, limit=None)
                assert one.physical_offset in [answer.physical_offset for answer in found]
                assert found.receipt.complete
                assert found.receipt.index_source == "whence"
    assert contents(folder) == dispatched_anew(folder, tmp_path / "anew")


@pytest.mark.parametrize("name", CRASHED)
def test_a_store_that_was_taken_over_is_gone_on_with(tmp_path, golden, name):
    folder = golden(name).copy(tmp_path)
    with adopt(folder) as store:
        end = store.stores[0].commit_log.end_offset()
        before = [len(store.find(topic="TopicTest", limit=None).messages)]
        result = store.append("TopicTest", b"one more", keys=["one-more"], queue=0)
        assert result.physical_offset == end
        assert len(store.find(key="one-more").messages) == 1
    with whence.create(folder) as store:
        assert len(store.find(topic="TopicTest", limit=None).messages) == before[0] + 1
    assert contents(folder) == dispatched_anew(folder, tmp_path / "anew")


def test_a_store_that_is_not_ours_is_left_alone_unless_it_is_asked_for(tmp_path):
    made = make_store(tmp_path / "store", keys(5))
    with pytest.raises(whence.UsageError, match="adopt=True"):
        create(made.folder)
    assert not (made.folder / "whence.json").exists()
    with adopt(made.folder) as store:
        assert len(store.find(key="key-3").messages) == 1


def test_a_half_written_record_is_dropped(tmp_path, crashed):
    results: list[Any] = []

    def fill(store):
        results.extend(store.append("T", b"x" * 100, keys=[f"key-{number}"]) for number in range(9))
        results.append(store.append("T", b"y" * 100, keys=["last"]))
        store.wait_dispatched()

    path = crashed(fill, items=400) / "commitlog" / f"{0:020d}"  # no index file is full, so that nothing is flushed
    last = results[-1]
    data = bytearray(path.read_bytes())
    data[last.physical_offset + 150 :] = bytes(4096 - last.physical_offset - 150)
    path.write_bytes(data)
    with create(tmp_path / "store", items=400) as store:
        assert store.recovered.end_offset == last.physical_offset
        assert not store.find(key="last").messages
        assert len(store.find(key="key-8").messages) == 1
        again = store.append("T", b"z", keys=["again"])
        assert (again.physical_offset, again.queue_offset) == (last.physical_offset, last.queue_offset)
    assert contents(tmp_path / "store") == dispatched_anew(tmp_path / "store", tmp_path / "anew")


def test_nothing_that_lay_behind_the_end_comes_back_to_life(tmp_path, crashed):
    """A new record of the size of a torn one would make the old one behind it readable again."""
    results: list[Any] = []

    def fill(store):
        results.append(store.append("T", b"a" * 50, keys=["torn"]))
        results.append(store.append("T", b"b" * 50, keys=["behind"]))

    path = crashed(fill) / "commitlog" / f"{0:020d}"
    torn, behind = results
    data = bytearray(path.read_bytes())
    data[torn.physical_offset + 90] ^= 1  # in the body: its checksum fails
    path.write_bytes(data)
    with create(tmp_path / "store") as store:
        assert store.recovered.end_offset == 0
        new = store.append("T", b"c" * 50, keys=["torn"])
        assert new.size == torn.size
        assert [one.body for one in store.find(topic="T")] == [b"c" * 50]
        (kept,) = store.recovered.cut
    cut = kept.read_bytes()
    assert kept.parent == tmp_path / "store.whence" / "cut"
    assert cut[behind.physical_offset :][: behind.size] == bytes(data)[behind.physical_offset :][: behind.size]


def test_damage_before_the_flushed_point_is_no_reason_to_cut_the_log(tmp_path):
    with create(tmp_path / "store") as store:
        results = [store.append("T", b"x" * 50, keys=[f"key-{number}"]) for number in range(9)]
    path = tmp_path / "store" / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[results[3].physical_offset + 90] ^= 1
    path.write_bytes(data)
    with create(tmp_path / "store") as store:
        assert store.recovered.end_offset == results[-1].physical_offset + results[-1].size
        assert len(store.find(key="key-8").messages) == 1
        answer = store.find(key="key-3")
        assert (len(answer.messages), answer.receipt.complete) == (0, False)


def test_nothing_is_appended_behind_a_gap(tmp_path):
    made = make_store(tmp_path / "store", keys(80))
    made.log_files[1].unlink()
    with pytest.raises(whence.CorruptError, match="the log has no bytes from offset 4096 to 8192"):
        adopt(made.folder)


def test_files_made_ahead_of_need_are_not_the_end(tmp_path, crashed):
    folder = crashed(lambda store: store.append("T", b"x", keys=["k"]))
    (folder / "commitlog" / f"{4096:020d}").write_bytes(bytes(4096))
    (folder / "commitlog" / f"{8192:020d}").write_bytes(b"")
    with create(folder) as store:
        (found,) = store.find(key="k")
        assert store.recovered.end_offset == found.physical_offset + found.size
        assert store.recovered.cut == []


def test_a_log_that_is_gone_is_not_begun_anew(tmp_path):
    """As when its disk is not mounted."""
    with create(tmp_path / "store") as store:
        for _ in range(80):
            store.append("T", b"x" * 100)
    (tmp_path / "store" / "commitlog").rename(tmp_path / "elsewhere")
    with pytest.raises(whence.StoreError, match=r"the log reached to offset [0-9]+ and is gone; is its disk mounted"):
        create(tmp_path / "store")
    (tmp_path / "store" / "commitlog").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "store" / "commitlog")
    with create(tmp_path / "store") as store:
        assert store.append("T", b"x").queue_offset == 80


def test_a_log_with_a_folder_missing_is_refused(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    with create(tmp_path / "store", log_folders=folders) as store:
        for _ in range(160):
            store.append("T", b"x" * 100)
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    with pytest.raises(whence.WhenceError, match=r"is gone|has no bytes from offset"):
        whence.create(tmp_path / "store")


def test_a_first_file_without_bytes_is_made_anew(tmp_path):
    create(tmp_path / "store").close()
    (tmp_path / "store" / "commitlog" / f"{0:020d}").write_bytes(b"")
    with create(tmp_path / "store") as store:
        assert store.append("T", b"x").status == "PUT_OK"


def test_an_index_ahead_of_a_log_that_was_cut_is_cut_with_it(tmp_path):
    with create(tmp_path / "store") as store:
        results = [store.append("T", b"x" * 50, keys=[f"key-{number}"]) for number in range(40)]
    cut = results[25]
    for path in sorted((tmp_path / "store" / "commitlog").iterdir()):
        base = int(path.name)
        data = path.read_bytes()
        kept = max(0, min(cut.physical_offset - base, len(data)))
        path.write_bytes(data[:kept] + bytes(len(data) - kept))
    with create(tmp_path / "store") as store:
        assert store.recovered.end_offset == cut.physical_offset
        assert not store.find(key="key-30", no_scan=True).messages
        store.append("T", b"new", keys=["key-30"])
        store.wait_dispatched()
        answer = store.find(key="key-30")
        assert [one.body for one in answer] == [b"new"]
    assert contents(tmp_path / "store") == dispatched_anew(tmp_path / "store", tmp_path / "anew")


def test_what_another_program_dispatched_since_is_made_again(tmp_path):
    """A broker went on with the store: it wrote messages, and did not index all of them."""
    with create(tmp_path / "store") as store:
        first = [store.append("T", b"x" * 50, keys=[f"key-{number}"], queue=0) for number in range(10)]
        end = first[-1].physical_offset + first[-1].size
    more = [message(keys=f"more-{number}", at=10_000 + number) for number in range(10)]
    path = tmp_path / "store" / "commitlog" / f"{0:020d}"
    records = place_behind(end, more, queue_offset=10)
    data = bytearray(path.read_bytes())
    for offset, record in records:
        data[offset : offset + len(record)] = record
    path.write_bytes(data)
    with create(tmp_path / "store") as store:
        for number in range(10):
            answer = store.find(key=f"more-{number}", topic="T", no_scan=True)
            assert len(answer.messages) == 1
            assert answer.receipt.index_source == "whence"
    assert contents(tmp_path / "store") == dispatched_anew(tmp_path / "store", tmp_path / "anew")


def place_behind(end, records, *, queue_offset):
    placed = []
    for number, record in enumerate(records):
        data = encode_record(replace(record, physical_offset=end, queue_offset=queue_offset + number))
        placed.append((end, data))
        end += len(data)
    assert end <= 4096 - 8
    return placed


@pytest.mark.parametrize("lost", ["oldest", "second", "newest", "all"])
def test_index_files_that_are_gone_are_made_again(tmp_path, lost):
    with create(tmp_path / "store") as store:
        for number in range(60):
            store.append("T", b"x" * 50, keys=[f"key-{number}"])
    files = sorted((tmp_path / "store" / "index").iterdir())
    assert len(files) > 3
    for path in {"oldest": files[:1], "second": files[1:2], "newest": files[-1:], "all": files}[lost]:
        path.unlink()
    with create(tmp_path / "store") as store:
        for number in range(60):
            answer = store.find(key=f"key-{number}", no_scan=True)
            assert len(answer.messages) == 1
            assert answer.receipt.complete
    assert contents(tmp_path / "store") == dispatched_anew(tmp_path / "store", tmp_path / "anew")


@pytest.mark.parametrize("lost", ["", "T", "T/0", f"T/0/{400:020d}"])
def test_queues_that_are_gone_are_made_again(tmp_path, lost):
    """RocketMQ's own way to have them made again is to delete them. Queue offsets must not begin anew."""
    with create(tmp_path / "store") as store:
        for number in range(30):
            store.append("T", b"x" * 50, keys=[f"key-{number}"])
            store.append("U", b"x" * 50, queue=1)
    path = tmp_path / "store" / "consumequeue" / lost
    path.unlink() if path.is_file() else shutil.rmtree(path)
    with create(tmp_path / "store") as store:
        assert len(store.find(topic="T", queue=0, queue_offset=25).messages) == 1
        assert store.append("T", b"x").queue_offset == 30
        assert store.append("U", b"x", queue=1).queue_offset == 30
    assert contents(tmp_path / "store") == dispatched_anew(tmp_path / "store", tmp_path / "anew")


def test_the_log_files_must_have_the_size_that_is_given(tmp_path):
    folder = tmp_path / "store"
    (folder / "commitlog").mkdir(parents=True)
    for name, data in log_bytes(place(keys(80))).items():
        (folder / "commitlog" / name).write_bytes(data)
    with pytest.raises(whence.UsageError, match="file_size=4096"):
        adopt(folder, file_size=2048)
