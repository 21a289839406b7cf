"""One case: a damaged store, and all that is done to it, from the number of the case."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from random import Random

import whence
from tests.golden import GoldenStore
from tests.hostile.checks import Asked, DamagedStore, ask, complaints
from tests.hostile.mutations import Target, mutate, write
from whence.cli.commands import main
from whence.door import Store
from whence.store import log_file
from whence.store.inspection import Kind, inspect_file

SETS = ("v5-direct", "v5-direct-crc", "v4-clean", "v53-clean")
KERNEL_EVERY = 4  # of how many cases one is also scanned with the kernel
COMMAND_EVERY = 10  # and one is also asked through the command line
EXPLAINED = 0.2  # which part of the questions is put to explain, and asked again page by page

Complaint = tuple[object, str]
"""What was done, and what is wrong with what came of it."""


class Bench:
    """The golden stores, in memory and in a folder, to be damaged and mended again and again."""

    def __init__(self, folder: Path) -> None:
        self.targets: list[Target] = []
        self.folders: dict[str, Path] = {}
        for name in SETS:
            golden = GoldenStore.unpack(name, folder / name)
            self.targets.append(Target.load(golden))
            self.folders[name] = golden.store

    def case(self, number: int) -> "Case":
        """The case of this number; nothing is damaged yet."""
        random = Random(number)
        target, donor = random.sample(self.targets, 2)
        store = DamagedStore(target, mutate(target, donor, random))
        return Case(number, store, self.folders[target.name], random)

    @contextmanager
    def damaged(self, number: int) -> Iterator["Case"]:
        """The case of this number, with its damage on disk, which is mended at the end."""
        case = self.case(number)
        changes = case.store.mutation.changes
        write(case.folder, changes)
        try:
            yield case
        finally:
            write(case.folder, {name: case.store.target.files.get(name) for name in changes})

    def warm_up(self) -> None:
        """Load all that is loaded late, so that the limits of a case measure the case."""
        for target in self.targets:
            folder = self.folders[target.name]
            with whence.open(folder) as store:
                list(compare_roads(store, folder, ask(target, Random(0))))


@dataclass
class Case:
    """A damaged store in a folder. ``outcomes`` counts what came of the questions."""

    number: int
    store: DamagedStore
    folder: Path
    random: Random
    outcomes: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return f"case {self.number} ({self.store.target.name}: {self.store.mutation})"

    def complaints(self) -> Iterator[Complaint]:
        """Do all that can be done to a store: open, find, explain, page, scan, inspect, by Python and by command."""
        questions = ask(self.store.target, self.random)
        try:
            with whence.open(self.folder) as opened:
                for asked in questions:
                    yield from ((asked, complaint) for complaint in self._answer(opened, asked))
                if self.number % KERNEL_EVERY == 0:
                    yield from compare_roads(opened, self.folder, questions)
            yield from self._inspect()
            if self.number % COMMAND_EVERY == 0:
                yield from self._command(self.random.choice(questions))
        except whence.WhenceError as error:
            self.outcomes["errors at open"] += 1
            yield from (("open", complaint) for complaint in bad_error(error))
        except Exception as error:
            yield "open", f"{type(error).__name__}: {error}"

    def _answer(self, opened: Store, asked: Asked) -> Iterator[str]:
        explains = self.random.random() < EXPLAINED
        try:
            if explains:
                explanation = opened.explain(**asked.arguments)
                json.dumps(explanation.to_dict())
                answer = explanation.answer
            else:
                answer = opened.find(**asked.arguments)
        except whence.WhenceError as error:
            self.outcomes["errors"] += 1
            yield from bad_error(error)
            return
        except Exception as error:
            yield f"{type(error).__name__}: {error}"
            return
        self.outcomes["complete answers" if answer.receipt.complete else "incomplete answers"] += 1
        yield from complaints(self.store, asked, answer)
        if explains and not answer.receipt.truncated and len(answer) > 1:
            yield from _compare_pages(opened, asked, [message.physical_offset for message in answer])

    def _inspect(self) -> Iterator[Complaint]:
        """Look at damaged files one by one, also as what they are not."""
        random = self.random
        there = [name for name, content in self.store.mutation.changes.items() if content is not None]
        for name in random.sample(there, min(2, len(there))):
            kind = random.choice((None, None, *Kind))
            start = random.choice((None, 0, 1, random.randrange(65536), 2**63))
            done = f"inspect {name} as {kind} from {start}"
            try:
                inspection = inspect_file(
                    self.folder / name, kind=kind, start=start, limit=random.choice((1, 20, None))
                )
                json.dumps(inspection.to_dict())
                self.outcomes["inspected files"] += 1
            except whence.WhenceError as error:
                self.outcomes["errors of inspect"] += 1
                yield from ((done, complaint) for complaint in bad_error(error))
            except Exception as error:
                yield done, f"{type(error).__name__}: {error}"

    def _command(self, asked: Asked) -> Iterator[Complaint]:
        """A question through the command line: no fault of its own, and nothing that a terminal would obey."""
        faces = {
            "find": (["--json"], ["--format=csv"], ["--format=jsonl"], ["--body"], []),
            "explain": (["--json"], []),
        }
        command = self.random.choice(list(faces))
        face = self.random.choice(faces[command])
        with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
            status = main([command, str(self.folder), *asked.options(), *face])
        if status not in range(5):
            yield (command, asked, face), f"status {status}: {errors.getvalue()}"
        shown = errors.getvalue() + (output.getvalue() if face in ([], ["--body"]) else "")
        if not all(char.isprintable() or char == "\n" for char in shown):
            yield (command, asked, face), f"prints what a terminal obeys: {shown!r}"


def compare_roads(opened: Store, folder: Path, questions: Sequence[Asked]) -> Iterator[Complaint]:
    """A scan by the kernel must end in the same answer and the same damage as one in plain Python."""
    plain_max, log_file.PLAIN_SCAN_MAX = log_file.PLAIN_SCAN_MAX, 0
    try:
        with whence.open(folder) as fast:
            for asked in (questions[1], questions[5]):
                given, other = _scanned(opened, asked), _scanned(fast, asked)
                if given != other:
                    yield asked, f"plain Python gives {given}, the kernel {other}"
    finally:
        log_file.PLAIN_SCAN_MAX = plain_max


def _scanned(opened: Store, asked: Asked) -> object:
    try:
        answer = opened.find(**{**asked.arguments, "scan": True, "no_scan": False})
    except whence.WhenceError as error:
        return str(error)
    return [message.physical_offset for message in answer], answer.receipt.complete, answer.receipt.damage


def _compare_pages(opened: Store, asked: Asked, offsets: list[int]) -> Iterator[str]:
    """Page by page must come what comes at once."""
    paged: list[int] = []
    cursor = None
    while len(paged) <= len(offsets):
        answer = opened.find(**{**asked.arguments, "limit": max(1, len(offsets) // 3)}, cursor=cursor)
        paged += [message.physical_offset for message in answer]
        cursor = answer.cursor
        if cursor is None:
            break
    if paged != offsets:
        yield f"in pages come {paged}, at once {offsets}"


def bad_error(error: whence.WhenceError) -> Iterator[str]:
    """An error about a file's bytes names the file and the byte; any other names the file or folder."""
    if isinstance(error, whence.FormatError) and (error.path is None or error.position is None):
        yield f"{type(error).__name__} names no file and byte: {error}"
    if isinstance(error, whence.UsageError) and "is a folder" not in str(error):
        yield f"the question is right, and yet: UsageError: {error}"
    if "/" not in str(error):
        yield f"{type(error).__name__} names no file: {error}"
