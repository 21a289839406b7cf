"""LogScan takes the records that CommitLog takes, and ends where it says that the log ends."""

import pytest

from tests.golden import ALL
from tests.store_maker import make_store, message
from whence.store import log_scan
from whence.store.commit_log import CommitLog
from whence.store.log_scan import LogScan
from whence.store.scan import Sieve


def scanned(scan: LogScan) -> list[int]:
    offsets: list[int] = []
    for batch in scan:
        assert len(batch.messages)
        assert not len(batch.items) or batch.items["message"][-1] < len(batch.messages)
        offsets += batch.messages["physical_offset"].tolist()
    return offsets


@pytest.mark.parametrize("rows", [1, 5, log_scan.ROWS])
@pytest.mark.parametrize("name", ALL)
def test_scan_takes_the_records_of_the_log_and_finds_its_end(golden, monkeypatch, name, rows):
    monkeypatch.setattr(log_scan, "ROWS", rows)
    log = CommitLog(golden(name).store / "commitlog")
    end = log.end_offset()
    offsets = [
        offset
        for begin, piece_end in log.pieces(log.begin_offset, end)
        for offset in log.scan(begin, piece_end, Sieve(), [])
    ]
    scan = LogScan(log, log.begin_offset, tags=True)
    assert scanned(scan) == offsets
    assert (scan.end_offset, scan.damage) == (end, [])
    middle = offsets[len(offsets) // 2]
    assert scanned(LogScan(log, middle, tags=True)) == offsets[len(offsets) // 2 :]
    assert scanned(LogScan(log, end, tags=True)) == []
    log.close()


def test_missing_and_damaged_parts_are_told_and_passed_over(tmp_path):
    made = make_store(tmp_path / "store", [message(keys=f"k{number}", body=b"b" * 900) for number in range(24)])
    first, second, *_ = made.log_files
    data = bytearray(first.read_bytes())
    data[made.offsets[1] + 100] ^= 1
    first.write_bytes(data)
    second.unlink()
    log = CommitLog(made.folder / "commitlog")
    scan = LogScan(log, 0, tags=False)
    gone = {made.offsets[1]} | {offset for offset in made.offsets if 4096 <= offset < 8192}
    assert scanned(scan) == [offset for offset in made.offsets if offset not in gone]
    assert [(damage.kind, damage.position) for damage in scan.damage] == [("bad_record", made.offsets[1]), ("gap", 0)]
    assert scan.end_offset == made.end_offset == log.end_offset()
    log.close()
