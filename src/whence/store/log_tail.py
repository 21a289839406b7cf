"""Cut the tail of a log: what lies behind its last whole record.

A copy of what is cut goes to ``cut/<20 digits>`` of the sidecar, named by the offset of its first byte. Zeros take
its place, for a file that others may have mapped is never made shorter.
"""

from __future__ import annotations

from pathlib import Path

from whence.files.disk import ZEROS, Disk
from whence.files.names import offset_name
from whence.files.plain_file import PlainFile
from whence.store.commit_log import CommitLog

CUT = "cut"  # the folder of the sidecar for copies of what is cut


def cut_tail(log: CommitLog, end_offset: int, sidecar: Path, disk: Disk) -> list[Path]:
    """Leave nothing but zeros behind the end of a log; the copies of what was cut. All is flushed."""
    kept = []
    for base in reversed(log.bases):
        if base + log.file_size <= end_offset:
            break
        position = max(end_offset - base, 0)
        with PlainFile(log.path_of(base)[0]) as file:
            pieces = file.written_pieces(position, ZEROS)
            if pieces:
                kept.append(keep_aside(file, pieces, base, pieces[0][0], sidecar / CUT, disk))
                with disk.open(file.path) as changed:
                    for at, size in pieces:
                        changed.write(ZEROS[:size], at)
                    changed.flush()
    log.refresh()
    return kept


def keep_aside(
    file: PlainFile, pieces: list[tuple[int, int]], base: int, position: int, folder: Path, disk: Disk
) -> Path:
    """Copy pieces of a log's file, as they lie from this position on; the copy lasts when this returns."""
    disk.make_folder(folder)
    path = folder / offset_name(base + position)
    aside = path.with_name(f".{path.name}.new")
    disk.remove(aside)
    with disk.create(aside, 0, reserve=False) as copy:
        for at, size in pieces:
            copy.write(file.read(at, size), at - position)
        copy.flush()
    disk.rename(aside, path)
    disk.flush_folder(folder)
    return path
