"""Readers look into the sidecar first, and believe it as far as it says that it knows the log."""

from tests.pipeline.test_build import SMALL, build, grow, unflushed  # noqa: F401, a fixture for all tests
from tests.store_maker import FILE_SIZE, make_store, message
from whence.door import open_store
from whence.files.names import sidecar_of


def orders(count: int):
    return [message(keys=f"k{number}", topic="TU"[number % 2], at=number) for number in range(count)]


def test_a_key_is_found_through_the_sidecar_alone(tmp_path):
    made = make_store(tmp_path / "store", orders(80), queues=False, indexed=0)
    build(made.folder, sidecar_of(made.folder), **SMALL)
    with open_store(made.folder) as store:
        answer = store.find(key="k41")
        assert [found.keys for found in answer] == [("k41",)]
        receipt = answer.receipt
        assert (receipt.complete, receipt.index_source, receipt.topics_from) == (True, "whence", "sidecar")
        assert receipt.scanned_bytes == 0
        assert store.topics() == ["T", "U"]
        assert [found.keys for found in store.find(topic="U", queue=0, queue_offset=3)] == [("k7",)]


def test_what_the_log_has_behind_the_sidecar_is_scanned_until_it_is_built(tmp_path):
    records = orders(80)
    made = make_store(tmp_path / "store", records[:50], queues=False, indexed=0)
    build(made.folder, sidecar_of(made.folder), **SMALL)
    with open_store(made.folder) as store:
        assert len(store.find(key="k79", topic="U")) == 0
        grow(made.folder, records)
        answer = store.find(key="k79", topic="U")
        assert len(answer) == 1 and answer.receipt.scanned_bytes > 0
        build(made.folder, sidecar_of(made.folder), **SMALL)
        answer = store.find(key="k79", topic="U")
        assert len(answer) == 1 and answer.receipt.scanned_bytes == 0
        assert answer.receipt.index_source == "whence"


def test_a_log_file_that_came_back_is_scanned(tmp_path):
    made = make_store(tmp_path / "store", orders(120), queues=False, indexed=0)
    path = made.log_files[1]
    data = path.read_bytes()
    path.unlink()
    build(made.folder, sidecar_of(made.folder), **SMALL)
    path.write_bytes(data)
    lost = [record for record in made.records if FILE_SIZE <= record.physical_offset < 2 * FILE_SIZE]
    with open_store(made.folder) as store:
        for record in lost:
            key = record.properties_data.partition(b"\x01")[2].partition(b"\x02")[0].decode()
            answer = store.find(key=key, topic=record.topic)
            assert len(answer) == 1, key
            assert answer.receipt.complete


def test_a_sidecar_of_another_log_is_not_used(tmp_path):
    made = make_store(tmp_path / "store", orders(80), queues=False, indexed=0)
    build(made.folder, sidecar_of(made.folder), **SMALL)
    grow(made.folder, [message(keys=f"k{number}", topic="T", at=7) for number in range(79, -1, -1)])
    with open_store(made.folder) as store:
        for number in (0, 40, 79):
            answer = store.find(key=f"k{number}", topic="T")
            assert len(answer) == 1
            assert answer.receipt.index_source == "none"


def test_a_key_of_a_record_that_the_build_could_not_read_is_not_denied(tmp_path):
    made = make_store(tmp_path / "store", orders(120), queues=False, indexed=0)
    lost = made.records[20]
    path = made.log_files[0]
    data = bytearray(path.read_bytes())
    data[lost.physical_offset + 90] ^= 1  # in its body: the checksum does not fit
    path.write_bytes(data)
    built = build(made.folder, sidecar_of(made.folder), **SMALL)
    assert [damage.kind.value for damage in built.damage] == ["bad_record"]
    with open_store(made.folder) as store:
        answer = store.find(key="k20", topic="T")
        assert len(answer) == 0
        assert (answer.receipt.complete, answer.receipt.why_empty) == (False, "damaged")
        answer = store.find(key="k21", topic="U")
        assert len(answer) == 1
        assert lost.size <= answer.receipt.scanned_bytes <= 3 * lost.size
    assert build(made.folder, sidecar_of(made.folder), **SMALL).messages == 0
