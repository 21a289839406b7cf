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
from whence.files.folder import folders_in, is_folder, remove_tree
from whence.pipeline.build import WORK
from whence.pipeline.fields import FIELDS_WORK
from whence.pipeline.tasks import MadeFile, own_name, read_made
from whence.store.sidecar import Sidecar


def has_published(sidecar: Path, claim: Sidecar | None) -> bool:
    """Whether a build was killed that may have renamed files already. ``claim``: what ``sidecar.json`` says."""
    work = sidecar / WORK
    if not is_folder(work):
        return False
    if any(name.startswith(FIELDS_WORK) for name in folders_in(work)):
        return True  # of which nothing tells how far it came
    made: list[MadeFile] = []
    for note in work.glob("*/*.made"):
        with suppress(FormatError, StoreError):
            made += read_made(note).files
    begins_anew = claim is not None and not claim.indexed  # this is said first, then files are renamed
    return any(begins_anew or not Path(file.path).exists() for file in made)


def let_go(sidecar: Path, disk: Disk) -> None:
    """Remove what builds left in ``work/``, each at once: half of it would look like more that was published."""
    work = sidecar / WORK
    if not is_folder(work):
        return
    for name in folders_in(work):
        disk.rename(work / name, work / own_name("gone"))
    disk.flush_folder(work)
    remove_tree(work)
