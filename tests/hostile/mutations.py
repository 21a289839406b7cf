"""Damage to a store's files, made from a number: the same number always gives the same damage.

A mutation is made over the files of a golden store that are held in memory, and says which files change and how.
Besides it knows what it did to whom, for that decides what an answer must still be (``checks.py``):

    edited      kinds of files whose bytes were altered inside, so that they may tell any lie
    log_moved   log files have new names, so that nobody can say which bytes are the log

A file that is only missing, cut, empty, doubled or in another's place is not edited: what such an index or queue
does not tell has to be found in the log.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from random import Random

from tests.golden import GoldenStore
from tests.reference import Record

LOG, INDEX, QUEUE, CHECKPOINT, CONFIG = "commitlog", "index", "consumequeue", "checkpoint", "config"
KINDS = (LOG, INDEX, QUEUE, CHECKPOINT, CONFIG)
PAGE = 4096
HUGE = 1 << 40


class Special(Enum):
    """What can stand where a file should be."""

    FOLDER = "a folder"
    PIPE = "a pipe"
    ENDLESS = "a link to an endless file"
    LOOP = "a link to itself"
    NOWHERE = "a link to nothing"
    SPARSE = "a file of a terabyte, all hole"


Content = bytes | Special | None
"""A file's new content; None if there is no such file any more."""


@dataclass(frozen=True)
class Target:
    """A golden store in memory."""

    name: str
    files: dict[str, bytes]
    records: list[Record]
    slot_capacity: int
    log_file_size: int

    @classmethod
    def load(cls, golden: GoldenStore) -> "Target":
        paths = sorted(path for path in golden.store.rglob("*") if path.is_file())
        files = {path.relative_to(golden.store).as_posix(): path.read_bytes() for path in paths}
        kept = {name: data for name, data in files.items() if name.split("/")[0] in KINDS}
        return cls(golden.name, kept, golden.records, golden.slot_capacity, golden.commit_log_file_size)

    @cached_property
    def by_kind(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {kind: [] for kind in KINDS}
        for name in self.files:
            names[name.split("/")[0]].append(name)
        return names

    @cached_property
    def by_offset(self) -> dict[int, tuple[Record, bytes]]:
        """The log's records and their bytes."""
        return {
            record.physical_offset: (record, self.files[name][position : position + record.size])
            for name, records in self.positions.items()
            for position, record in records
        }

    @cached_property
    def positions(self) -> dict[str, list[tuple[int, Record]]]:
        """Where records begin in each log file."""
        found: dict[str, list[tuple[int, Record]]] = {name: [] for name in self.by_kind[LOG]}
        for record in self.records:
            base = record.physical_offset - record.physical_offset % self.log_file_size
            found[f"{LOG}/{base:020d}"].append((record.physical_offset - base, record))
        return found


@dataclass
class Mutation:
    """What changes, in words and in bytes."""

    what: list[str] = field(default_factory=list)
    changes: dict[str, Content] = field(default_factory=dict)
    edited: set[str] = field(default_factory=set)
    log_moved: bool = False

    @property
    def touches_log(self) -> bool:
        return any(name.startswith(LOG) for name in self.changes)

    def files(self, target: Target) -> dict[str, Content]:
        """The store's files as they are after it."""
        return {**target.files, **self.changes}

    def __str__(self) -> str:
        return "; ".join(self.what)


def mutate(target: Target, donor: Target, random: Random) -> Mutation:
    """One mutation, or a few on top of each other."""
    mutation = Mutation()
    for _ in range(random.choices((1, 2, 3), (8, 2, 1))[0]):
        weights = [weight for weight, _ in MUTATORS]
        random.choices([mutator for _, mutator in MUTATORS], weights)[0](target, donor, random, mutation)
    return mutation


# Inside of files


def edit_bytes(target: Target, donor: Target, random: Random, mutation: Mutation) -> None:
    """Alter bytes of one file in place: bits, ranges, pages, numbers, what another file has there."""
    name, data = _some_file(target, random, mutation)
    edit = random.choice((_flip, _flip, _fill, _swap_ranges, _splice, _number, _number, _number))
    what, edited = edit(target, donor, random, name, bytearray(data))
    _edit(mutation, name, what, bytes(edited))


def shift_bytes(target: Target, donor: Target, random: Random, mutation: Mutation) -> None:
    """Take bytes out of a file, or put some in, so that all behind them moves."""
    name, data = _some_file(target, random, mutation)
    at, size = _range(random, len(data))
    match random.randrange(3):
        case 0:
            what, edited = f"{size} bytes taken out at {at}", data[:at] + data[at + size :]
        case 1:
            what, edited = f"{size} bytes doubled at {at}", data[: at + size] + data[at:]
        case _:
            what, edited = f"{size} random bytes put in at {at}", data[:at] + random.randbytes(size) + data[at:]
    _edit(mutation, name, what, edited)


def bend_links(target: Target, donor: Target, random: Random, mutation: Mutation) -> None:
    """Let slots and items of an index file lead to themselves, forward, in circles, or out of the file."""
    name = random.choice(target.by_kind[INDEX])
    data = _current(target, mutation, name)
    if len(data) < 40 + 4 * target.slot_capacity + 40:
        return
    edited = bytearray(data)
    items_at = 40 + 4 * target.slot_capacity
    count = (len(data) - items_at) // 20
    first, second = random.randrange(1, count), random.randrange(1, count)

    def link(number: int, to: int) -> None:
        at = items_at + 20 * number + 16
        edited[at : at + 4] = (to % 2**32).to_bytes(4, "big")

    match random.randrange(5):
        case 0:
            what = f"item {first} leads to itself"
            link(first, first)
        case 1:
            what = f"items {first} and {second} lead to each other"
            link(first, second)
            link(second, first)
        case 2:
            to = random.choice((-1, -(2**31), 2**31 - 1, count, count - 1, second))
            what = f"item {first} leads to {to}"
            link(first, to)
        case 3:
            what = "all items lead one forward"
            for number in range(1, count):
                link(number, number + 1)
        case _:
            to = random.choice((-1, -(2**31), 2**31 - 1, count, count - 1, second))
            what = f"all slots lead to {to}"
            edited[40:items_at] = (to % 2**32).to_bytes(4, "big") * target.slot_capacity
    _edit(mutation, name, what, bytes(edited))


def _flip(target: Target, donor: Target, random: Random, name: str, data: bytearray) -> tuple[str, bytearray]:
    places = [_place(target, random, name, data) for _ in range(random.choice((1, 1, 2, 8)))]
    for at in places:
        data[at] ^= 1 << random.randrange(8)
    return f"bits flipped at {places}", data


def _fill(target: Target, donor: Target, random: Random, name: str, data: bytearray) -> tuple[str, bytearray]:
    at, size = _range(random, len(data))
    if random.random() < 0.5:
        at -= at % PAGE
        size = min(PAGE * random.choice((1, 1, 2)), len(data) - at)
    fill = random.choice((b"\0", b"\xff", None))
    data[at : at + size] = random.randbytes(size) if fill is None else fill * size
    return f"{size} bytes at {at} filled with {fill!r}", data


def _swap_ranges(target: Target, donor: Target, random: Random, name: str, data: bytearray) -> tuple[str, bytearray]:
    first, size = _range(random, len(data))
    second = random.randrange(len(data) - size + 1)
    data[first : first + size], data[second : second + size] = (
        data[second : second + size],
        data[first : first + size],
    )
    return f"{size} bytes at {first} and {second} swapped", data


def _splice(target: Target, donor: Target, random: Random, name: str, data: bytearray) -> tuple[str, bytearray]:
    giver = random.choice((target, donor))
    other = random.choice([name for name in giver.files if giver.files[name]])
    at, size = _range(random, len(data))
    start = random.randrange(len(giver.files[other]))
    piece = giver.files[other][start : start + size]
    data[at : at + len(piece)] = piece
    return f"{len(piece)} bytes at {at} are those of {giver.name}/{other} at {start}", data


def _number(target: Target, donor: Target, random: Random, name: str, data: bytearray) -> tuple[str, bytearray]:
    """Make one field huge, negative, zero, or a little wrong."""
    at, size = _field(target, random, name, data)
    old = int.from_bytes(data[at : at + size], "big", signed=True)
    bits = 8 * size
    extremes = (0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), 2 ** (bits - 2))
    sizes = (8, 90, 91, len(data), len(data) - at)
    near = (old + 1, old - 1, 2 * old, -old, old ^ 1 << random.randrange(bits), old + 20, old - 20)
    new = random.choice((*extremes, *sizes, *near))
    data[at : at + size] = (new % 2**bits).to_bytes(size, "big")
    return f"number at {at}: {old} becomes {new}", data


HEAD_FIELDS = ((0, 4), (0, 4), (4, 4), (8, 4), (12, 4), (20, 8), (28, 8), (36, 4), (40, 8), (56, 8), (84, 4))
ITEM_FIELDS = ((0, 4), (4, 8), (12, 4), (16, 4))
ENTRY_FIELDS = ((0, 8), (8, 4), (12, 8))
HEADER_FIELDS = ((0, 8), (8, 8), (16, 8), (24, 8), (32, 4), (36, 4))


def _field(target: Target, random: Random, name: str, data: bytearray) -> tuple[int, int]:
    """Position and size of some field of this kind of file; of 4 bytes anywhere if the bytes are too few."""
    kind = name.split("/")[0]
    start, (at, size) = 0, (0, 8)
    if kind == LOG and target.positions.get(name):
        start, record = random.choice(target.positions[name])
        properties_at = record.size - len(record.properties_data) - 2
        topic_at = properties_at - len(record.topic.encode()) - record.version
        at, size = random.choice((*HEAD_FIELDS, (properties_at, 2), (topic_at, record.version)))
    elif kind == INDEX:
        items_at = 40 + 4 * target.slot_capacity
        match random.randrange(3):
            case 0:
                at, size = random.choice(HEADER_FIELDS)
            case 1:
                at, size = 40 + 4 * random.randrange(target.slot_capacity), 4
            case _:
                start = items_at + 20 * random.randrange(max(1, (len(data) - items_at) // 20))
                at, size = random.choice(ITEM_FIELDS)
    elif kind == QUEUE:
        start = 20 * random.randrange(max(1, len(data) // 20))
        at, size = random.choice(ENTRY_FIELDS)
    elif kind == CHECKPOINT:
        at = 8 * random.randrange(6)
    if start + at + size <= len(data):
        return start + at, size
    size = min(4, len(data))
    return random.randrange(len(data) - size + 1), size


def _place(target: Target, random: Random, name: str, data: bytearray) -> int:
    """A byte: anywhere, or of some field."""
    if random.random() < 0.5:
        return random.randrange(len(data))
    at, size = _field(target, random, name, data)
    return at + random.randrange(size)


# Whole files


def drop_file(target: Target, donor: Target, random: Random, mutation: Mutation) -> None:
    name, _ = _some_file(target, random, mutation)
    _change(mutation, name, "deleted", None)


def cut_file(target: Target, donor: Target, random: Random, mutation: Mutation) -> None:
    name, data = _some_file(target, random, mutation)
    size = random.choice((0, 0, 1, 39, 40, 41, len(data) - 1, len(data) // 2, random.randrange(len(data))))
    _change(mutation, name, f"cut to {size} bytes", data[:size])


def extend_file(target: Target, donor: Target, random: Random, mutation: Mutation) -> None:
    name, data = _some_file(target, random, mutation)
    size = random.choice((1, 4, 20, 40, PAGE, len(data)))
    more = random.choice((bytes(size), random.randbytes(size), data[:size]))
    _change(mutation, name, f"{len(more)} bytes appended", data + more)


def double_file(target: Target, donor: Target, random: Random, mutation: Mutation) -> None:
    name, data = _some_file(target, random, mutation)
    other = _odd_name(target, random, name)
    _change(mutation, other, f"copy of {name}", data)
    mutation.log_moved |= name.startswith(LOG)


def rename_file(target: Target, donor: Target, random: Random, mutation: Mutation) -> None:
    double_file(target, donor, random, mutation)
    name = mutation.what[-1].split("copy of ")[1]
    _change(mutation, name, "deleted", None)


def exchange_files(target: Target, donor: Target, random: Random, mutation: Mutation) -> None:
    """Two files of one kind in each other's place."""
    kind = random.choice((LOG, INDEX, INDEX, QUEUE, QUEUE))
    first, second = random.sample(target.by_kind[kind], 2)
    first_data, second_data = (_current(target, mutation, name) for name in (first, second))
    _change(mutation, first, f"exchanged with {second}", second_data)
    _change(mutation, second, f"exchanged with {first}", first_data)


def take_foreign_file(target: Target, donor: Target, random: Random, mutation: Mutation) -> None:
    """A file of another store, or of another kind, in the place of one or beside it."""
    name, _ = _some_file(target, random, mutation)
    kind = name.split("/")[0]
    givers = donor.by_kind[kind if random.random() < 0.7 else random.choice(KINDS)]
    other = random.choice(givers or list(donor.files))
    if kind in (LOG, INDEX) and random.random() < 0.3:
        name = f"{kind}/{other.split('/')[-1]}"
    # A log file of another store, that begins at the same offset, is as good as the one that it replaces.
    mutation.log_moved |= kind == LOG
    _change(mutation, name, f"is {donor.name}/{other}", donor.files[other])


def exchange_headers(target: Target, donor: Target, random: Random, mutation: Mutation) -> None:
    """The header of one index file over the items of another; an item count must then be told from the items."""
    first, second = random.sample(target.by_kind[INDEX], 2)
    giver = random.choice((_current(target, mutation, second), donor.files[random.choice(donor.by_kind[INDEX])]))
    data = giver[:40] + _current(target, mutation, first)[40:]
    _change(mutation, first, "has another file's header", data)


def put_special_file(target: Target, donor: Target, random: Random, mutation: Mutation) -> None:
    name, _ = _some_file(target, random, mutation)
    special = random.choice(list(Special))
    _change(mutation, name, f"is {special.value}", special)


def drop_all(target: Target, donor: Target, random: Random, mutation: Mutation) -> None:
    """All files of a kind, or of one queue."""
    kind = random.choice((INDEX, INDEX, QUEUE, CHECKPOINT, LOG))
    names = target.by_kind[kind]
    if kind == QUEUE and random.random() < 0.5:
        folder = random.choice(names).rpartition("/")[0]
        names = [name for name in names if name.startswith(f"{folder}/")]
    for name in names:
        mutation.changes[name] = None
    mutation.what.append(f"{len(names)} files like {names[0]} deleted")


Mutator = Callable[[Target, Target, Random, Mutation], None]
MUTATORS: Sequence[tuple[int, Mutator]] = (
    (10, edit_bytes),
    (3, shift_bytes),
    (3, bend_links),
    (3, drop_file),
    (3, cut_file),
    (2, extend_file),
    (2, double_file),
    (2, rename_file),
    (3, exchange_files),
    (3, take_foreign_file),
    (1, exchange_headers),
    (1, put_special_file),
    (1, drop_all),
)


def _some_file(target: Target, random: Random, mutation: Mutation) -> tuple[str, bytes]:
    """A file that still has bytes, with the bytes it has by now."""
    while True:
        kind = random.choices(KINDS, (8, 6, 4, 1, 1))[0]
        if target.by_kind[kind]:
            name = random.choice(target.by_kind[kind])
            data = _current(target, mutation, name)
            if data:
                return name, data
        if random.random() < 0.05:  # all may be deleted by now
            return next((name, data) for name, data in target.files.items() if data)


def _current(target: Target, mutation: Mutation, name: str) -> bytes:
    content = mutation.changes.get(name, target.files[name])
    return content if isinstance(content, bytes) else b""


def _change(mutation: Mutation, name: str, what: str, content: Content) -> None:
    mutation.what.append(f"{name} {what}")
    mutation.changes[name] = content


def _edit(mutation: Mutation, name: str, what: str, content: bytes) -> None:
    _change(mutation, name, what, content)
    mutation.edited.add(name.split("/")[0])


def _range(random: Random, size: int) -> tuple[int, int]:
    """Position and size of a stretch; short ones are likelier."""
    at = random.randrange(size)
    return at, random.randint(1, min(size - at, random.choice((1, 4, 20, 100, PAGE, size))))


def _odd_name(target: Target, random: Random, name: str) -> str:
    """A name in the same folder, that a file of this kind may have or should not have."""
    folder, _, old = name.rpartition("/")
    number = int(old) if old.isdigit() else 0
    step = target.log_file_size
    names = (
        f"{number + random.choice((-1, 1)) * step * random.randrange(1, 40):020d}",
        f"{number + random.choice((1, 20, PAGE, step // 2)):020d}",
        f"{number + random.randrange(1, 10**6):017d}",
        "9" * 20,
        str(2**63 - 1).zfill(20),
        str(2**62).zfill(20),
        "0",
        "7" * random.choice((1, 16, 17, 18, 19, 21, 200)),
        "١٢٣٤٥٦٧٨٩٠١٢٣٤٥٦٧٨٩٠",
        f"{old}.bak",
        ".hidden",
        "\udcff",
    )
    return f"{folder}/{random.choice(names)}" if folder else random.choice(names)


# On disk


def write(folder: Path, files: dict[str, Content]) -> None:
    """Put files into a store's folder. They are new files, for the old ones may still be mapped."""
    for name, content in files.items():
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        if content is None:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        match content:
            case bytes():
                path.write_bytes(content)
            case Special.FOLDER:
                path.mkdir()
            case Special.PIPE:
                os.mkfifo(path)
            case Special.ENDLESS:
                path.symlink_to("/dev/zero")
            case Special.LOOP:
                path.symlink_to(path.name)
            case Special.NOWHERE:
                path.symlink_to("nowhere")
            case Special.SPARSE:
                path.touch()
                os.truncate(path, HUGE)
