"""What a sidecar has of messages that have expired from the log: files that lead only below where that begins now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from whence.store.field_claim import FOLDER
from whence.store.old_files import old_index_files, old_queue_files
from whence.store.sidecar import Sidecar


class Expired(NamedTuple):
    """What ``sidecar.json`` is to say first, and then which files can go."""

    claim: Sidecar
    files: list[Path]


def expired_of(folder: Path, claim: Sidecar, begin_offset: int) -> Expired:
    """What of a sidecar can go, as a broker lets go of its own; time blocks are :class:`GrowingTimes`' to remove.

    Never the newest index file, nor the last file of a queue: they tell where these go on. ``indexed`` begins where
    it did: by that one sees that the first file that is left inherits from one that went. What lies in a store of
    somebody else's is his to remove.
    """
    gone = [file.path for file in old_queue_files(folder, begin_offset)[0]]
    if not claim.in_place:
        names = {file.path.name for file in old_index_files(folder, begin_offset)[0]}
        gone += [folder / "index" / name for name in sorted(names)]
        claim = replace(claim, index_names=tuple(name for name in claim.index_names if name not in names))
    fields = {}
    for field_name, field in claim.fields.items():
        root = folder / FOLDER / field_name
        names = {file.path.name for file in old_index_files(root, begin_offset)[0]}
        gone += [root / kind / name for name in sorted(names) for kind in ("index", "values")]
        left = tuple(name for name in field.index_names if name not in names)
        fields[field_name] = replace(field, index_names=left)
    return Expired(replace(claim, fields=fields), gone)
