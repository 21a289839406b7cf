"""Which part of the log each index file answers for, whatever became of the others."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.store.test_index_check import Row, built
from whence.formats.rocketmq.index_file import IndexHeader
from whence.pipeline.index_parts import FileEnds, IndexPart, plan_parts, read_ends, shapes_of
from whence.store.index_file import DEFAULT_SHAPE, Shape
from whence.store.spilled import MessageItems

T = 1_700_000_000_000
SHAPE = Shape(5, 7)  # six items
ROWS: list[Row] = [(number + 1, 100 * (number // 2), T + 1000 * number) for number in range(20)]


class Log:
    """Items as a SpilledLog has them: two of each message."""

    item_count = len(ROWS)

    def of_message(self, physical_offset: int) -> MessageItems | None:
        found = [number for number, row in enumerate(ROWS) if row[1] == physical_offset]
        if not found:
            return None
        return MessageItems(found[0], np.array([ROWS[number][0] for number in found], np.int32))

    def place(self, number: int) -> tuple[int, int]:
        return ROWS[number][1], ROWS[number][2]


def written(folder: Path, name: str, rows: Sequence[Row]) -> FileEnds:
    path = folder / name
    path.write_bytes(built(rows, SHAPE).to_bytes())
    return read_ends(path, SHAPE)


def spans(parts: Sequence[IndexPart]) -> list[tuple[str, int, int, int]]:
    return [(part.file.path.name, part.first, part.behind, part.begun) for part in parts]


def plan(files: Sequence[FileEnds], *, is_exact: bool = False, is_live: bool = False, begin: int = 0):
    return plan_parts(files, Log(), begin, is_exact=is_exact, is_live=is_live)


def whole(folder: Path) -> list[FileEnds]:
    return [
        written(folder, name, rows) for name, rows in (("1", ROWS[:6]), ("2", ROWS[6:12]), ("3", ROWS[12:18]))
    ] + [written(folder, "4", ROWS[18:])]


WHOLE = [("1", 0, 6, 0), ("2", 6, 12, 0), ("3", 12, 18, 0), ("4", 18, 20, 0)]


@pytest.mark.parametrize("is_exact", [True, False])
def test_files_follow_on_each_other(tmp_path, is_exact):
    parts = plan(whole(tmp_path), is_exact=is_exact)
    assert spans(parts) == WHOLE
    assert [part.before and part.before.end_timestamp_ms for part in parts] == [
        None,
        *(ROWS[number][2] for number in (5, 11, 17)),
    ]
    assert [part.is_newest for part in parts] == [False, False, False, True]


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_file_that_cannot_be_read_gets_what_its_neighbours_leave(tmp_path, number, is_exact):
    files = whole(tmp_path)
    files[number] = FileEnds(files[number].path, SHAPE)
    assert spans(plan(files, is_exact=is_exact)) == WHOLE


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("end", ["first", "last"])
def test_one_end_tells_the_other(tmp_path, end, is_exact):
    files = whole(tmp_path)
    lost = built(ROWS[6:12], SHAPE)
    lost.items[1 if end == "first" else 6].physical_offset = 2**60
    (tmp_path / "2").write_bytes(lost.to_bytes())
    files[1] = read_ends(tmp_path / "2", SHAPE)
    assert spans(plan(files, is_exact=is_exact)) == WHOLE


def test_several_that_cannot_be_read_share_what_is_left_if_whence_made_them(tmp_path):
    files = whole(tmp_path)
    for number in (1, 2):
        files[number] = FileEnds(files[number].path, SHAPE)
    assert spans(plan(files, is_exact=True)) == WHOLE
    assert spans(plan(files)) == [("1", 0, 6, 0), ("2", 6, 18, 0), ("3", 18, 18, 0), ("4", 18, 20, 0)]


def test_files_with_each_others_names_are_each_held_against_its_own_part(tmp_path):
    files = [
        written(tmp_path, name, rows)
        for name, rows in (("1", ROWS[:6]), ("2", ROWS[12:18]), ("3", ROWS[6:12]), ("4", ROWS[18:]))
    ]
    assert spans(plan(files, is_exact=True)) == WHOLE
    assert spans(plan(files)) == [("1", 0, 6, 0), ("3", 6, 12, 0), ("2", 12, 18, 0), ("4", 18, 20, 0)]


def test_a_hole_belongs_to_the_file_behind_it(tmp_path):
    files = [file for file in whole(tmp_path) if file.path.name != "2"]
    assert spans(plan(files)) == [("1", 0, 6, 0), ("3", 6, 18, 0), ("4", 18, 20, 0)]


def test_a_file_may_begin_in_the_middle_of_a_message_or_repeat_it(tmp_path):
    first = written(tmp_path, "1", ROWS[:5])
    assert spans(plan([first, written(tmp_path, "2", ROWS[5:11])]))[1] == ("2", 5, 20, 0)
    assert spans(plan([first, written(tmp_path, "2", ROWS[4:10])]))[1] == ("2", 4, 20, 1)
    assert spans(plan([first, written(tmp_path, "2", ROWS[:6])]))[1] == ("2", 0, 20, 5)
    overlapping = plan([first, written(tmp_path, "2", ROWS[2:8])])
    assert spans(overlapping)[1] == ("2", 2, 20, 3)


def test_what_lies_behind_the_newest_file_is_late_while_its_writer_runs(tmp_path):
    files = whole(tmp_path)[:2]
    assert spans(plan(files))[-1] == ("2", 6, 20, 0)
    assert spans(plan(files, is_live=True))[-1] == ("2", 6, 12, 0)
    empty = written(tmp_path, "3", [])
    assert spans(plan([*files, empty], is_live=True))[-1] == ("3", 12, 12, 0)
    assert spans(plan([*files, empty]))[-1] == ("3", 12, 20, 0)


def test_expired_files_have_no_part(tmp_path):
    assert spans(plan(whole(tmp_path), begin=300))[0] == ("1", 0, 0, 0)


def test_what_the_first_file_inherits_is_known_if_none_was_before_it(tmp_path):
    files = whole(tmp_path)
    known = plan_parts(files, Log(), 0, is_exact=True, is_live=False, is_whole=True)
    assert (known[0].is_first_known, known[0].before) == (True, None)
    assert not plan(files, is_exact=True)[0].is_first_known
    assert plan(files)[1].before == IndexHeader(ROWS[5][2], ROWS[5][2], ROWS[5][1], ROWS[5][1], 0, 0)


def test_a_shape_is_that_of_most_files_where_one_does_not_show_it(tmp_path):
    files = whole(tmp_path)
    paths = [file.path for file in files]
    (tmp_path / "2").write_bytes(bytes(SHAPE.file_size))
    assert set(shapes_of(paths, None).values()) == {SHAPE}
    assert shapes_of(paths, Shape(3, 9)) == dict.fromkeys(paths, Shape(3, 9))
    (tmp_path / "5").write_bytes(b"")
    assert shapes_of([tmp_path / "5"], None) == {tmp_path / "5": DEFAULT_SHAPE}
    assert read_ends(tmp_path / "5", DEFAULT_SHAPE).header is None
    assert read_ends(tmp_path / "6", DEFAULT_SHAPE).header is None
