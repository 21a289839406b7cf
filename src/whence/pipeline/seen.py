"""What files show of how they were made: the shape and dialect of an index, the size of the files of queues.

sidecar.json claims it, too, and either may be damaged. Each file is a witness, the claim is one, and what a build
that is asked for nothing would choose is another: most of them are right. So good files are not made anew to suit a
wrong claim, and a damaged file does not change a right one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from whence.errors import FormatError, StoreError
from whence.files.folder import files_in, folders_in, is_folder
from whence.files.mapped_file import MappedFile
from whence.files.names import is_digits
from whence.formats.rocketmq.consume_queue import ENTRY_SIZE
from whence.formats.rocketmq.index_file import FIRST_ITEM, ITEM_SIZE, decode_items, item_position
from whence.formats.rocketmq.properties import VALUE_END
from whence.formats.rocketmq.sys_flag import TRANSACTION_MASK, Transaction
from whence.pipeline.index_parts import FileEnds, read_ends
from whence.store.commit_log import CommitLog
from whence.store.index_file import IndexFile, Shape
from whence.store.log_scan import LogScan
from whence.store.message_store import Dialect
from whence.store.ownership import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

INDEX_FILES = 16  # that are asked, of all: the first, the last, and some between them
QUEUE_FILES = 1000
QUEUE_FILE_SIZE = Settings().queue_file_size
SAMPLE_SIZE = 1 << 20  # bytes of log, and items, of each file that is asked for its dialect
SAMPLE_ITEMS = 32_768

Value = TypeVar("Value")


class MadeLike(NamedTuple):
    """How index and queues are made."""

    shape: Shape
    dialect: Dialect
    queue_file_size: int


def believed(
    root: Path, names: Sequence[str], log: CommitLog, claimed: MadeLike, usual: Callable[[], MadeLike]
) -> MadeLike:
    """How the index files of these names, and the queues below ``root``, were made.

    ``usual`` tells what a build would choose; it is asked only if files do not show what is claimed.
    """
    paths = _some([root / "index" / name for name in names])
    shape = _elected(claimed.shape, seen_shapes(paths, claimed.shape), lambda: usual().shape)
    dialects = [seen for path in paths if (seen := seen_dialect(read_ends(path, shape), log)) is not None]
    has_tags = _elected(_has_tags(claimed.dialect), map(_has_tags, dialects), lambda: _has_tags(usual().dialect))
    # Two dialects without tags make the same files.
    dialect = next((each for each in (claimed.dialect, *dialects) if _has_tags(each) == has_tags), claimed.dialect)
    size = _whole_entries(claimed.queue_file_size)
    seen_size = _elected(size, seen_queue_sizes(root), lambda: _whole_entries(usual().queue_file_size))
    return MadeLike(shape, dialect, claimed.queue_file_size if seen_size == size else seen_size)


def _has_tags(dialect: Dialect) -> bool:
    return dialect is Dialect.V5_5


def _whole_entries(size: int) -> int:
    """The size of a file of a queue that was to have this size: of whole entries, upwards."""
    return -(-size // ENTRY_SIZE) * ENTRY_SIZE


def _elected(claimed: Value, seen: Iterable[Value], usual: Callable[[], Value]) -> Value:
    """What most witnesses say; of two with as many the claim."""
    votes = Counter(seen)
    if not votes.keys() - {claimed}:
        return claimed
    votes.update((claimed, usual()))
    value, count = votes.most_common(1)[0]
    return claimed if votes[claimed] == count else value


def _some(paths: Sequence[Path]) -> Sequence[Path]:
    """Up to INDEX_FILES of many."""
    if len(paths) <= INDEX_FILES:
        return paths
    return [paths[number * (len(paths) - 1) // (INDEX_FILES - 1)] for number in range(INDEX_FILES)]


def seen_shapes(paths: Sequence[Path], claimed: Shape) -> Iterator[Shape]:
    """The shapes that index files show."""
    for path in paths:
        try:
            shape = IndexFile(path).resolve_shape([claimed])
        except (FormatError, StoreError):
            continue
        if shape is not None:
            yield shape


def usual_queue_size(root: Path) -> int:
    """The size that most files of queues have; RocketMQ's, if there are none."""
    sizes = Counter(seen_queue_sizes(root))
    return sizes.most_common(1)[0][0] if sizes else QUEUE_FILE_SIZE


def seen_queue_sizes(root: Path) -> Iterator[int]:
    """The sizes that some files of queues have, where such a size can be right."""
    folder = root / "consumequeue"
    topics = folders_in(folder) if is_folder(folder) else []
    queues = (folder / topic / queue for topic in topics for queue in folders_in(folder / topic))
    files = (state.size for queue in queues for name, state in files_in(queue).items() if is_digits(name))
    return islice((size for size in files if size and not size % ENTRY_SIZE), QUEUE_FILES)


def seen_dialect(file: FileEnds, log: CommitLog) -> Dialect | None:
    """Which version made an index file: whether it has the tags of its first messages. None if these have none."""
    from whence.kernels.scan import Kind

    try:
        items = _first_items(file)
        if not len(items):
            return None
        offsets = set(items["physical_offset"].tolist())
        there = set(zip(items["physical_offset"].tolist(), items["key_hash"].tolist(), strict=True))
        # The first message may have items in the file before, and the last one in the next.
        begin, end = file.first_offset + log.read(file.first_offset).size, max(offsets)
        has_it: list[bool] = []
        ending = b""
        for batch in LogScan(log, begin, min(begin + SAMPLE_SIZE, end), tags=True):
            flags = batch.messages["sys_flag"][batch.items["message"]]
            is_half = flags & TRANSACTION_MASK == Transaction.PREPARED  # some brokers leave all of these out
            tags = batch.items[(batch.items["kind"] == Kind.TAGS) & ~is_half]
            for offset, key_hash in zip(tags["physical_offset"].tolist(), tags["key_hash"].tolist(), strict=True):
                if offset in offsets and offset < end:
                    has_it.append((offset, key_hash) in there)
                    ending = ending or log.read(offset).properties_data[-1:]
    except (FormatError, StoreError):
        return None  # another file will tell
    if not has_it:
        return None
    if 2 * sum(has_it) >= len(has_it):
        return Dialect.V5_5
    return Dialect.V5_3 if ending == VALUE_END.encode() else Dialect.V4_9


def _first_items(file: FileEnds) -> NDArray[np.void]:
    count = min(file.item_count, SAMPLE_ITEMS)
    with MappedFile(file.path) as mapped:
        at = item_position(file.shape.slot_capacity, FIRST_ITEM)
        return decode_items(bytes(mapped.data[at : at + ITEM_SIZE * count]))
