"""The judge is judged first: of a store that RocketMQ wrote itself, it says what the log says."""

import pytest

from tests.compat.store import Seen, Sizes, StoreJudge, check_looks, check_queues
from tests.reference import query_offset, read_index, read_log

pytestmark = [pytest.mark.compat, pytest.mark.slow]


@pytest.mark.parametrize(("version", "name"), [("5.5.0", "v5-clean"), ("4.9.5", "v4-clean")])
def test_judge_says_of_a_golden_store_what_its_log_says(golden, tmp_path, version, name):
    store = golden(name)
    folder = store.copy(tmp_path)
    sizes = Sizes(store.commit_log_file_size, store.queue_file_size, store.slot_capacity, store.item_capacity)
    index = read_index(store.store, store.slot_capacity, store.item_capacity)
    with StoreJudge(version, folder, sizes) as judge:
        assert (judge.begin_offset, judge.end_offset) == store.log_range
        check_queues(judge, store.records)
        check_looks(judge, store.records)
        assert judge.look(store.records[0].physical_offset + 1) is None
        for record in store.records[::3]:
            for key in record.keys:
                found = query_offset(index, f"{record.topic}#{key}", 64, 0, 2**63 - 1)
                assert judge.query(record.topic, key) == sorted(found)
        put = judge.put("New", 1, b"body", "key other", "tag", {"name": "value"})
        batch = judge.put_batch("New", 1, [(b"one", "key"), (b"two", "")])
        assert (put.status, batch.status) == ("PUT_OK", "PUT_OK")
        assert (put.queue_offset, batch.queue_offset, len(batch.physical_offsets)) == (0, 1, 2)
        judge.stop()
    records = {record.physical_offset: record for record in read_log(folder)}
    assert records[put.physical_offsets[0]].properties == {"name": "value", "KEYS": "key other", "TAGS": "tag"}
    assert [records[offset].stored_body for offset in batch.physical_offsets] == [b"one", b"two"]
    with StoreJudge(version, folder, sizes) as judge:
        expected = [records[offset] for offset in (*put.physical_offsets, *batch.physical_offsets)]
        assert judge.read("New", 1) == [Seen.of(record) for record in expected]
        judge.kill()
    assert (folder / "abort").exists()
