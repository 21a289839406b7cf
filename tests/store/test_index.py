"""Index: which part of the log its files can be believed for, and which has to be scanned."""

import os
import shutil

import pytest

from tests.golden import ALL
from tests.reference import build_index, i32, i64
from tests.store_maker import FILE_SIZE, MadeStore, T, make_store, message, write_index
from whence.errors import UsageError
from whence.store.commit_log import CommitLog
from whence.store.damage import DamageKind
from whence.store.index import Index
from whence.store.index_file import Shape

MESSAGES = [message(keys=f"a{number} b{number}", unique_id=f"id-{number}", at=7 * number) for number in range(60)]


def cover_of(folder, shape=None):
    return Index(folder / "index", shape=shape).cover(CommitLog(folder / "commitlog"))


def believed(cover):
    """Names of the files that cover something, oldest part of the log first."""
    return [segment.file.path.name for segment in cover.segments if segment.file is not None]


def check(cover, made: MadeStore):
    """What holds of every cover: segments follow each other over the whole log, and no two overlap.

    A message that no segment's file was asked for lies in a segment that is scanned.
    """
    log = CommitLog(made.folder / "commitlog")
    assert (cover.begin_offset, cover.end_offset) == (log.begin_offset, log.end_offset())
    position = cover.begin_offset
    for segment in cover.segments:
        assert segment.from_offset == position or not log.pieces(position, segment.from_offset)
        assert segment.from_offset < segment.to_offset
        position = segment.to_offset
    assert position == cover.end_offset or not cover.segments


@pytest.mark.parametrize("name", ALL)
def test_every_index_file_of_a_golden_set_is_believed(golden, name):
    known = golden(name)
    cover = cover_of(known.store)
    assert (cover.not_used, cover.expired) == ((), ())
    assert cover.file_count == len(known.headers)
    # A file whose items all belong to one message, or that has none, covers nothing between two records.
    wide = [
        h for h in known.headers if h["index_count"] > 1 and h["begin_physical_offset"] < h["end_physical_offset"]
    ]
    assert believed(cover) == [header["file"] for header in sorted(wide, key=lambda h: h["begin_physical_offset"])]
    end = max(header["end_physical_offset"] for header in known.headers)
    record = next(record for record in known.records if record.physical_offset == end)
    assert cover.indexed_to_offset == next_offset(known.records, record)
    assert cover.indexed_to_timestamp_ms == record.store_timestamp_ms


def next_offset(records, record):
    behind = [other.physical_offset for other in records if other.physical_offset > record.physical_offset]
    return min(behind) if behind else record.physical_offset + record.size


def test_files_cover_the_log_between_the_records_at_their_ends(tmp_path):
    """A message's items may straddle two files, so the records at a file's begin and end are read themselves."""
    made = make_store(tmp_path, MESSAGES, items=50)
    cover = cover_of(tmp_path)
    check(cover, made)
    assert len(made.index) == 4
    assert len(believed(cover)) == 4
    begins = {file.begin_physical_offset for file in made.index}
    ends = {file.end_physical_offset for file in made.index}
    for segment in cover.segments:
        if segment.file is None:
            assert segment.seam
            inside = {offset for offset in made.offsets if segment.from_offset <= offset < segment.to_offset}
            assert inside <= begins | ends
    covered = {
        offset
        for segment in cover.segments
        if segment.file is not None
        for offset in made.offsets
        if segment.from_offset <= offset < segment.to_offset
    }
    assert covered == set(made.offsets) - begins - ends


def test_what_lies_behind_the_last_item_is_not_covered(tmp_path):
    made = make_store(tmp_path, MESSAGES, items=1000, indexed=20)
    cover = cover_of(tmp_path)
    check(cover, made)
    assert cover.indexed_to_offset == made.offsets[20]
    assert cover.indexed_to_timestamp_ms == T + 7 * 19
    assert not cover.segments[-1].seam
    assert cover.segments[-1].to_offset == made.end_offset


def test_without_a_folder_nothing_is_covered(tmp_path):
    made = make_store(tmp_path, MESSAGES, indexed=0)
    shutil.rmtree(tmp_path / "index")
    cover = cover_of(tmp_path)
    check(cover, made)
    assert (believed(cover), cover.file_count, cover.not_used) == ([], 0, ())
    assert (cover.indexed_to_offset, cover.indexed_to_timestamp_ms) == (None, None)


def test_what_is_scanned_is_cut_at_the_log_s_files(tmp_path):
    make_store(tmp_path, MESSAGES, indexed=0)
    segments = cover_of(tmp_path).segments
    assert [segment.from_offset for segment in segments] == [FILE_SIZE * number for number in range(len(segments))]
    assert not any(segment.seam for segment in segments)


def test_files_are_ordered_by_the_offsets_in_their_headers_not_by_name(tmp_path):
    made = make_store(tmp_path, MESSAGES, items=50)
    names = [path.name for path in made.index_files]
    contents = [path.read_bytes() for path in made.index_files]
    for name, data in zip(reversed(names), contents, strict=True):
        (tmp_path / "index" / name).write_bytes(data)
    cover = cover_of(tmp_path)
    check(cover, made)
    assert believed(cover) == names[::-1]
    assert cover.not_used == ()


@pytest.mark.parametrize("name", ["7", "20260101120000000123456", "00000000000000000000"])
def test_any_name_of_digits_is_an_index_file(tmp_path, name):
    made = make_store(tmp_path, MESSAGES, items=1000)
    made.index_files[0].rename(tmp_path / "index" / name)
    assert believed(cover_of(tmp_path)) == [name]


def test_other_names_are_passed_over(tmp_path):
    made = make_store(tmp_path, MESSAGES, items=1000)
    shutil.copy(made.index_files[0], tmp_path / "index" / "20260101120000001.bak")
    (tmp_path / "index" / "notes").write_text("x")
    cover = cover_of(tmp_path)
    assert (len(believed(cover)), cover.file_count, cover.not_used) == (1, 1, ())


# -- a file is a claim --------------------------------------------------------------------------------------

NOT_BELIEVED = {
    "empty": lambda data: b"",
    "shorter than a header": lambda data: data[:39],
    "only a header": lambda data: data[:40],
    "cut in its items": lambda data: data[:-30],
    "one byte longer": lambda data: data + b"\0",
    "begin offset above the end": lambda data: data[:16] + i64(10**6) + data[24:],
    "another begin time": lambda data: i64(T + 1) + data[8:],
    "another end time": lambda data: data[:8] + i64(T + 1) + data[16:],
    "a begin offset where no record begins": lambda data: data[:16] + i64(1) + data[24:],
    "a begin offset in no file": lambda data: data[:16] + i64(2**40) + i64(2**40) + data[32:],
    "a negative end offset": lambda data: data[:24] + i64(-1) + data[32:],
    "a count that does not fit": lambda data: data[:36] + i32(7) + data[40:],
    "junk": lambda data: bytes(range(256)) * (len(data) // 256),
}


@pytest.mark.parametrize("damage", NOT_BELIEVED)
def test_a_file_that_cannot_be_right_is_not_believed_and_told(tmp_path, damage):
    made = make_store(tmp_path, MESSAGES, items=50)
    bad = made.index_files[2]
    bad.write_bytes(NOT_BELIEVED[damage](bad.read_bytes()))
    cover = cover_of(tmp_path)
    check(cover, made)
    assert bad.name not in believed(cover)
    assert len(believed(cover)) == 3
    [told] = cover.not_used
    assert (told.path, told.kind) == (str(bad), DamageKind.INDEX_NOT_USED)
    assert not told.kind.hides_messages
    assert cover.file_count == 4
    scanned = [segment for segment in cover.segments if segment.file is None and not segment.seam]
    assert sum(segment.to_offset - segment.from_offset for segment in scanned) > 500


def test_a_pipe_and_a_folder_among_the_files_are_told(tmp_path):
    made = make_store(tmp_path, MESSAGES, items=1000)
    os.mkfifo(tmp_path / "index" / "1")
    (tmp_path / "index" / "2").mkdir()
    cover = cover_of(tmp_path)
    check(cover, made)
    assert len(believed(cover)) == 1
    assert sorted(told.path for told in cover.not_used) == [str(tmp_path / "index" / name) for name in "12"]


def test_a_new_file_without_items_covers_nothing_and_is_no_damage(tmp_path):
    """A broker makes the next file, all zero or with the end of the last one, when the last one is full."""
    made = make_store(tmp_path, MESSAGES, items=1000)
    last = made.index[-1]
    inherited = i64(last.end_timestamp_ms) * 2 + i64(last.end_physical_offset) * 2 + i32(0) + i32(1)
    for name, header in (("20260101120000001", bytes(40)), ("20260101120000002", inherited)):
        (tmp_path / "index" / name).write_bytes(header + bytes(4 * 7 + 20 * 1000))
    cover = cover_of(tmp_path)
    check(cover, made)
    assert (len(believed(cover)), cover.not_used, cover.file_count) == (1, (), 3)


def test_an_older_copy_under_another_name_does_no_harm(tmp_path):
    made = make_store(tmp_path, MESSAGES, items=1000)
    write_index(tmp_path, build_index(made.records[:25], "5.5", 7, 1000), first_name=20250101120000000)
    cover = cover_of(tmp_path)
    check(cover, made)
    assert cover.not_used == ()
    assert cover.indexed_to_offset == made.end_offset
    assert not [segment for segment in cover.segments if segment.file is None and not segment.seam]


def test_a_hole_between_two_files_is_scanned(tmp_path):
    """As a broker leaves it that lost an index file in a crash."""
    made = make_store(tmp_path, MESSAGES, indexed=0)
    shutil.rmtree(tmp_path / "index")
    write_index(tmp_path, build_index(made.records[:20], "5.5", 7, 1000))
    write_index(tmp_path, build_index(made.records[40:], "5.5", 7, 1000), first_name=20260101130000000)
    cover = cover_of(tmp_path)
    check(cover, made)
    scanned = [segment for segment in cover.segments if segment.file is None and not segment.seam]
    assert (scanned[0].from_offset, scanned[-1].to_offset) == (made.offsets[20], made.offsets[40])
    edges = [segment for segment in cover.segments if segment.seam]
    assert [segment.from_offset for segment in edges][1:3] == [made.offsets[19], made.offsets[40]]


def test_files_below_the_log_s_start_have_expired(tmp_path):
    made = make_store(tmp_path, MESSAGES, items=50)
    for path in made.log_files[:-1]:
        path.unlink()
    begin = int(made.log_files[0].name)
    cover = cover_of(tmp_path)
    check(cover, made)
    gone = [file for file in made.index if file.end_physical_offset < begin]
    assert gone
    assert [file.path for file in cover.expired] == made.index_files[: len(gone)]
    assert cover.not_used == ()
    assert cover.segments[0].from_offset == begin


def test_a_file_that_begins_below_the_log_s_start_covers_the_rest(tmp_path):
    made = make_store(tmp_path, MESSAGES, items=1000)
    made.log_files[0].unlink()
    cover = cover_of(tmp_path)
    check(cover, made)
    assert (len(believed(cover)), cover.not_used, cover.expired) == (1, (), ())
    assert cover.segments[0].from_offset == FILE_SIZE
    assert cover.segments[0].file is not None


class TestShape:
    def test_counts_that_are_asked_for_are_used(self, tmp_path):
        made = make_store(tmp_path, MESSAGES, slots=11, items=50)
        index = Index(tmp_path / "index", shape=Shape(11, 50))
        cover = index.cover(CommitLog(tmp_path / "commitlog"))
        check(cover, made)
        assert {file.shape for file in index.files} == {Shape(11, 50)}

    @pytest.mark.parametrize("asked", [Shape(12, 50), Shape(11, 51), Shape(16, 49), Shape(5_000_000, 20_000_000)])
    def test_wrong_counts_are_noticed_and_the_right_ones_told(self, tmp_path, asked):
        make_store(tmp_path, MESSAGES, slots=11, items=50)
        with pytest.raises(UsageError, match="it shows 11 slots and 50 items"):
            cover_of(tmp_path, asked)

    def test_files_of_other_counts_may_lie_side_by_side(self, tmp_path):
        """A broker that was started with other settings goes on in a new file of its own."""
        made = make_store(tmp_path, MESSAGES, indexed=0)
        shutil.rmtree(tmp_path / "index")
        write_index(tmp_path, build_index(made.records[:20], "5.5", 7, 62))
        write_index(tmp_path, build_index(made.records[20:], "5.5", 23, 1000), first_name=20260101130000000)
        index = Index(tmp_path / "index")
        check(index.cover(CommitLog(tmp_path / "commitlog")), made)
        assert {file.shape for file in index.files} == {Shape(7, 62), Shape(23, 1000)}

    def test_no_counts_that_fit_ask_for_the_options(self, tmp_path):
        made = make_store(tmp_path, MESSAGES, items=1000)
        data = made.index_files[0].read_bytes()
        made.index_files[0].write_bytes(data + b"\0")
        [told] = cover_of(tmp_path).not_used
        assert "--slots and --items" in told.detail


class TestWhileABrokerWrites:
    def test_a_new_file_is_noticed(self, tmp_path):
        made = make_store(tmp_path, MESSAGES, items=50)
        held_back = made.index_files[-1].read_bytes()
        made.index_files[-1].unlink()
        log, index = CommitLog(tmp_path / "commitlog"), Index(tmp_path / "index")
        before, state = index.cover(log), index.state()
        (tmp_path / "index" / "20260101120000004").write_bytes(held_back)
        assert index.state() != state
        after = index.cover(log)
        assert len(believed(after)) == len(believed(before)) + 1
        check(after, made)

    def test_items_put_into_a_file_are_noticed(self, tmp_path):
        made = make_store(tmp_path, MESSAGES, items=1000, indexed=20)
        log, index = CommitLog(tmp_path / "commitlog"), Index(tmp_path / "index")
        before, state = index.cover(log), index.state()
        [twin] = build_index(made.records[:30], "5.5", 7, 1000)
        with made.index_files[0].open("r+b") as writer:
            writer.write(twin.to_bytes())
        assert index.state() != state
        assert (before.indexed_to_offset, index.cover(log).indexed_to_offset) == (made.offsets[20], made.offsets[30])

    def test_a_deleted_file_is_noticed(self, tmp_path):
        made = make_store(tmp_path, MESSAGES, items=50)
        log, index = CommitLog(tmp_path / "commitlog"), Index(tmp_path / "index")
        index.cover(log)
        made.index_files[0].unlink()
        after = index.cover(log)
        check(after, made)
        assert (len(believed(after)), after.file_count) == (3, 3)

    def test_a_file_may_be_seen_before_it_has_its_size(self, tmp_path):
        """RocketMQ makes a file empty and then sets its length: a reader may come in between."""
        made = make_store(tmp_path, MESSAGES, items=1000)
        data = made.index_files[0].read_bytes()
        made.index_files[0].write_bytes(b"")
        log, index = CommitLog(tmp_path / "commitlog"), Index(tmp_path / "index")
        assert believed(index.cover(log)) == []
        with made.index_files[0].open("r+b") as writer:
            writer.write(data)
        after = index.cover(log)
        assert (len(believed(after)), after.not_used) == (1, ())

    def test_a_file_may_lead_into_log_files_that_were_made_since_those_were_listed(self, tmp_path):
        made = make_store(tmp_path, MESSAGES, items=1000)
        assert len(made.log_files) > 1
        held_back = {path: path.read_bytes() for path in made.log_files[1:]}
        for path in held_back:
            path.unlink()
        log, index = CommitLog(tmp_path / "commitlog"), Index(tmp_path / "index")
        for path, data in held_back.items():
            path.write_bytes(data)
        cover = index.cover(log)
        assert (len(believed(cover)), cover.not_used) == (1, ())

    def test_a_file_of_the_same_name_that_takes_its_place_is_read(self, tmp_path):
        """Written aside and renamed, as a repair does it."""
        made = make_store(tmp_path, MESSAGES, items=1000, indexed=20)
        log, index = CommitLog(tmp_path / "commitlog"), Index(tmp_path / "index")
        assert index.cover(log).indexed_to_offset == made.offsets[20]
        [twin] = build_index(made.records, "5.5", 7, 1000)
        (tmp_path / "aside").write_bytes(twin.to_bytes())
        (tmp_path / "aside").rename(made.index_files[0])
        assert index.cover(log).indexed_to_offset == made.end_offset


def test_a_log_that_was_cut_takes_the_index_ahead_of_it_out_of_use(tmp_path):
    """The record at the index's end is not in the log any more, or another one lies there."""
    made = make_store(tmp_path, MESSAGES, items=1000)
    last = made.log_files[-1]
    cut = made.offsets[-5] - int(last.name)
    last.write_bytes(last.read_bytes()[:cut].ljust(FILE_SIZE, b"\0"))
    cover = cover_of(tmp_path)
    assert cover.end_offset == made.offsets[-5]
    assert believed(cover) == []
    [told] = cover.not_used
    assert "is not in the log" in told.detail


def test_the_twin_of_this_module_straddles_messages_over_files(tmp_path):
    """Or the tests above would prove nothing about seams."""
    made = make_store(tmp_path, MESSAGES, items=50)
    ends = [file.end_physical_offset for file in made.index]
    begins = [file.begin_physical_offset for file in made.index]
    assert set(ends[:-1]) & set(begins[1:])
