"""Batch, light and ext queues: RocketMQ makes the same files of a log that whence wrote, and reads ours."""

import shutil
from pathlib import Path

import pytest

import whence
from tests.compat.store import Seen, Sizes, StoreJudge
from tests.disks import UnflushedDisk
from tests.reference import Record, read_log
from tests.store.test_dispatch import files_below
from whence.formats.rocketmq.body import BatchItem, encode_batch
from whence.store.commit_log import CommitLog
from whence.store.log_scan import LogScan
from whence.store.queue_builder import QueueBuilder

pytestmark = [pytest.mark.compat, pytest.mark.slow]

SIZES = Sizes()
BATCH_FILE_SIZE = 10 * 46
EXT_FILE_SIZE = 1000
LIGHT = ("%LMQ%a", "%LMQ%b$c", "%LMQ%rare")
SETTINGS = {
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "mapperFileSizeBatchConsumeQueue": str(BATCH_FILE_SIZE),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of all kinds of messages; its own queues are made with whence's sizes."""
    folder = tmp_path_factory.mktemp("kinds") / "store"
    with whence.create(folder, file_size=SIZES.log, queue_file_size=SIZES.queue, slots=97, items=400) as store:
        store.make_topic("Batches", 2, {"queue.type": "BatchCQ"})
        for number in range(150):
            tags = f"tag{number % 5}" if number % 3 else None
            store.append("Plain", b"body", keys=[f"k{number}"], tags=tags, queue=number % 2)
            names = ",".join(LIGHT[: 1 + number % 2] if number % 50 else LIGHT)
            store.append("Lit", b"light", tags="t", properties={"INNER_MULTI_DISPATCH": names})
            items = [BatchItem(0, b"item", b"") for _ in range(1 + number % 7)]
            batch = store.append_inner_batch("Batches", encode_batch(items), tags=tags, queue=number % 2)
            assert batch.status == "PUT_OK", batch.detail
            store.append("Batches", b"alone", queue=number % 2)
            store.append("SCHEDULE_TOPIC_XXXX", b"later", queue=2, properties={"DELAY": "3"})
        assert store.append("Lit", b"prepared", sys_flag=4).status == "PUT_OK"
        store.append("%RETRY%group", b"retry", properties={"INNER_MULTI_DISPATCH": LIGHT[0]})
    return folder


def built_by_rocketmq(store: Path, folder: Path, **settings: str) -> dict[str, bytes]:
    """The queue files that RocketMQ makes of the store's log."""
    for name in ("commitlog", "config"):
        shutil.copytree(store / name, folder / name)
    with StoreJudge("5.5.0", folder, SIZES, **SETTINGS, **settings) as judge:
        judge.stop()
    return queue_files(folder)


def built_by_whence(store: Path, folder: Path, **settings: int) -> dict[str, bytes]:
    log = CommitLog(store / "commitlog")
    builder = QueueBuilder(
        folder / "consumequeue",
        SIZES.queue,
        UnflushedDisk(),
        is_batch=lambda topic: topic == "Batches",
        batch_file_size=BATCH_FILE_SIZE,
        **settings,
    )
    for batch in LogScan(log, 0, tags=False):
        builder.put(batch.data, batch.base_offset, batch.messages)
    builder.finish()
    log.close()
    return queue_files(folder)


def queue_files(folder: Path) -> dict[str, bytes]:
    return {
        f"{kind}/{name}": data
        for kind in ("consumequeue", "batchconsumequeue", "consumequeue_ext")
        for name, data in files_below(folder / kind).items()
    }


def test_rocketmq_makes_the_same_queues_of_the_log(store, tmp_path):
    theirs = built_by_rocketmq(store, tmp_path / "theirs")
    assert built_by_whence(store, tmp_path / "ours") == theirs
    folders = {str(Path(name).parent) for name in theirs}
    assert folders >= {f"consumequeue/{name}/0" for name in (*LIGHT, "Lit")} | {"batchconsumequeue/Batches/1"}


def test_rocketmq_makes_the_same_ext_queues_of_the_log(store, tmp_path):
    theirs = built_by_rocketmq(
        store,
        tmp_path / "theirs",
        enableConsumeQueueExt="true",
        mappedFileSizeConsumeQueueExt=str(EXT_FILE_SIZE),
    )
    assert built_by_whence(store, tmp_path / "ours", ext_file_size=EXT_FILE_SIZE) == theirs
    assert any(name.startswith("consumequeue_ext/Plain/0/") for name in theirs)


def test_rocketmq_reads_all_kinds_of_queues_that_whence_wrote(store, tmp_path):
    folder = Path(shutil.copytree(store, tmp_path / "store"))
    records = read_log(folder)
    lit = [record for record in records if record.topic == "Lit" and record.sys_flag == 0]
    settings = {name: value for name, value in SETTINGS.items() if not name.startswith("mapper")}
    with StoreJudge("5.5.0", folder, SIZES, **settings) as judge:
        for name in LIGHT:
            expected = [record for record in lit if name in record.properties["INNER_MULTI_DISPATCH"].split(",")]
            assert [seen.physical_offset for seen in judge.read(name, 0)] == offsets(expected)
        for queue in (0, 1):
            expected = [record for record in records if (record.topic, record.queue) == ("Batches", queue)]
            assert [seen.physical_offset for seen in judge.read("Batches", queue)] == offsets(expected)
            assert judge.queues()["Batches", queue][1] == end_of(expected)
        assert judge.read("Plain", 1) == [
            Seen.of(record) for record in records if (record.topic, record.queue) == ("Plain", 1)
        ]
        put = judge.put("Lit", 0, b"theirs", properties={"INNER_MULTI_DISPATCH": LIGHT[2]})
        assert put.status == "PUT_OK"
        judge.stop()
    with whence.create(folder) as again:
        (theirs,) = again.find(topic=LIGHT[2], queue=0, queue_offset=3)
        assert theirs.body == b"theirs"
        assert again.append("Lit", b"ours", properties={"INNER_MULTI_DISPATCH": LIGHT[2]}).status == "PUT_OK"
        again.wait_dispatched(60)
        (ours,) = again.find(topic=LIGHT[2], queue=0, queue_offset=4)
        assert ours.body == b"ours"


def offsets(records: list[Record]) -> list[int]:
    return [record.physical_offset for record in records]


def end_of(records: list[Record]) -> int:
    return records[-1].queue_offset + int(records[-1].properties.get("INNER_NUM", 1))
