import json

import pytest

from tests.disks import UnflushedDisk
from whence.errors import CorruptError, UnsupportedError, UsageError
from whence.files.names import sidecar_of
from whence.formats.rocketmq.index_file import IndexHeader
from whence.store.message_store import Dialect
from whence.store.ownership import Flushed, Ownership, Settings, read_ownership

OWNERSHIP = Ownership(
    Settings(65536, 2000, 97, 400, Dialect.V5_3, ("commitlog", "/other/commitlog")),
    Flushed(
        2000, 1000, 900, b"\x01" * 48, "20260101120000000", IndexHeader(1, 2, 3, 4, 5, 6), ("20250101120000000",), 80
    ),
    writer=17,
)


def test_what_is_written_is_read_again(tmp_path):
    OWNERSHIP.write(tmp_path, UnflushedDisk())
    assert read_ownership(tmp_path) == OWNERSHIP
    Ownership(Settings(), Flushed()).write(tmp_path, UnflushedDisk())
    assert read_ownership(tmp_path) == Ownership(Settings(), Flushed())
    assert [path.name for path in tmp_path.iterdir()] == ["whence.json"]


def test_a_store_without_it_is_not_ours(tmp_path):
    assert read_ownership(tmp_path) is None


def changed(**members):
    def change(document):
        for name, value in members.items():
            *parents, last = name.split("__")
            place = document
            for parent in parents:
                place = place[parent]
            place[last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed(version="1"),
        changed(version=0),
        changed(file_size=10),
        changed(file_size=2**40),
        changed(file_size="65536"),
        changed(queue_file_size=0),
        changed(slots=0),
        changed(items=True),
        changed(dialect="6.0"),
        changed(log_folders=[]),
        changed(log_folders=[7]),
        changed(flushed=[]),
        changed(flushed__queues=2**70),
        changed(flushed__index=1.5),
        changed(last_record__head="zz"),
        changed(newest_index__name="../../etc/passwd"),
        changed(newest_index__item_count=None),
        changed(older_index_files=["x"]),
        changed(older_index_files=7),
        changed(flushed__queues_size=None),
        changed(writer="me"),
    ],
)
def test_what_whence_did_not_write_is_refused_with_its_name(tmp_path, change):
    OWNERSHIP.write(tmp_path, UnflushedDisk())
    path = tmp_path / "whence.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(CorruptError, match=r"whence\.json"):
        read_ownership(tmp_path)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"[" * 50_000, b"null"])
def test_what_is_no_json_object_is_refused_with_its_name(tmp_path, data):
    (tmp_path / "whence.json").write_bytes(data)
    with pytest.raises(CorruptError, match=r"whence\.json"):
        read_ownership(tmp_path)


def test_a_newer_version_is_refused(tmp_path):
    OWNERSHIP.write(tmp_path, UnflushedDisk())
    text = (tmp_path / "whence.json").read_text()
    (tmp_path / "whence.json").write_text(text.replace('"version": 1', '"version": 2'))
    with pytest.raises(UnsupportedError, match="version 2"):
        read_ownership(tmp_path)


@pytest.mark.parametrize(
    "given",
    [{"file_size": 98}, {"file_size": 2**31}, {"queue_file_size": 19}, {"slots": 0}, {"items": 1}, {"items": 2**30}],
)
def test_sizes_that_no_store_can_have_are_refused(given):
    with pytest.raises(UsageError, match="file of"):
        Settings(**given)


def test_the_sidecar_lies_beside_the_store(tmp_path):
    assert sidecar_of(tmp_path / "store") == tmp_path / "store.whence"
