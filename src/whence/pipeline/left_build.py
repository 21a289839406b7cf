"""What a build that was killed left in ``work/`` of a sidecar: whether it had begun to publish, and to let go of it.

Between its first rename and ``sidecar.json`` files are ahead of what is said of them. That is no damage: the next
build finishes it. What it does not find in ``work/`` any more it takes for published, so whoever changes files that
are in place lets go of ``work/`` before.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from whence.errors import FormatError, StoreError
from whence.files.disk import Disk
from whence.pipeline.sidecar_folder import FIELDS_WORK, GONE, WORK, left_in_work, remove_left_in_work
from whence.pipeline.tasks import MadeFile, own_name, read_made
from whence.store.sidecar import Sidecar


def has_published(sidecar: Path, claim: Sidecar | None) -> bool:
    """Whether a build was killed that may have renamed files already. ``claim``: what ``sidecar.json`` says."""
    work = sidecar / WORK
    if any(name.startswith(FIELDS_WORK) for name in left_in_work(work)):
        return True  # of which nothing tells how far it came
    made: list[MadeFile] = []
    for note in work.glob("*/*.made"):
        with suppress(FormatError, StoreError):
            made += read_made(note).files
    begins_anew = claim is not None and not claim.indexed  # this is said first, then files are renamed
    return any(begins_anew or not Path(file.path).exists() for file in made)


def let_go(sidecar: Path, disk: Disk) -> None:
    """Remove what jobs left in ``work/``, each at once: half of it would look like more that was published."""
    work = sidecar / WORK
    left = left_in_work(work)
    for name in left:
        disk.rename(work / name, work / own_name(GONE))
    if left:
        disk.flush_folder(work)
    remove_left_in_work(work)
