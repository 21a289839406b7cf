"""Golden data: stores and index files that RocketMQ itself wrote, with the answers it gave.

``rocketmq/PROVENANCE.md`` tells how each set was made and what its files hold. Nothing in there is ever
edited: where whence and this data disagree, whence is wrong.

    for name in ALL: ...                       names by kind, for pytest.mark.parametrize
    few_fast(ALL)                              the same for a test that takes long: most of them marked as slow
    golden("v5-clean").store                   fixture of conftest.py: the unpacked store, only for reading
    golden("v5-clean").copy(tmp_path)          a fresh copy that a test may damage
    golden("v5-clean").messages                the answers, as plain dicts with RocketMQ's names and values
    golden("v5-clean").records                 the log as tests/reference.py reads it
"""

import gzip
import json
import shutil
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tests.reference import Record, read_log

FOLDER = Path(__file__).parent / "rocketmq"
INDEX_FILES_FOLDER = FOLDER / "indexfile"

CLEAN = ("v4-clean", "v53-clean", "v5-clean")
DIRECT = ("v5-direct", "v5-direct-crc")
CRASHED = ("v4-crashed", "v53-crashed", "v5-crashed-a", "v5-crashed-b")
RECOVERED = ("v4-recovered", "v53-recovered", "v5-recovered-a", "v5-recovered-b")
DAMAGED = ("v5-damaged-body-flip", "v5-damaged-half-record", "v5-damaged-lost-page")

# A crashed store was never opened again, so it has no answers of a running store.
ANSWERED = CLEAN + DIRECT + RECOVERED + DAMAGED
ALL = ANSWERED + CRASHED
FEW = ("v4-clean", "v5-direct-crc", "v5-recovered-a", "v5-damaged-half-record", "v5-crashed-b")  # one of each kind

DIALECTS = {"4.9.5": "4.9", "5.3.3": "5.3", "5.5.0": "5.5"}


def few_fast(names: Iterable[str]) -> list[ParameterSet]:
    """Of the names, those of FEW as they are, the others for slow tests."""
    return [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in names]


def load(path: Path) -> Any:
    """Read a ``.json`` or ``.jsonl`` file; where only its ``.gz`` is there, that one."""
    if path.exists():
        text = path.read_text("ascii")
    else:
        with gzip.open(f"{path}.gz", "rt", encoding="ascii") as file:
            text = file.read()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text)


@dataclass(frozen=True)
class GoldenStore:
    """One set: ``store`` is its unpacked folder, the properties are the answers recorded for it."""

    name: str
    store: Path

    @classmethod
    def unpack(cls, name: str, folder: Path) -> "GoldenStore":
        with tarfile.open(FOLDER / name / "store.tar.gz") as archive:
            if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and later
                archive.extraction_filter = tarfile.data_filter
            archive.extractall(folder)
        return cls(name, folder / "store")

    def copy(self, folder: Path) -> Path:
        """Copy the store into ``folder``, for a test that writes to it."""
        return Path(shutil.copytree(self.store, folder / "store"))

    def load(self, file_name: str) -> Any:
        return load(FOLDER / self.name / file_name)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """``store.json``: version, sizes, and ``[size, sha256]`` of every file."""
        return self.load("store.json")

    @property
    def base(self) -> str:
        """The crashed set of which a recovered or damaged one was made."""
        return self.settings.get("base", self.name.replace("recovered", "crashed"))

    @property
    def dialect(self) -> str:
        return DIALECTS[self.settings["rocketmq"]]

    @property
    def slot_capacity(self) -> int:
        return self.settings["maxHashSlotNum"]

    @property
    def item_capacity(self) -> int:
        """RocketMQ's ``maxIndexNum``: one more than the items that fit, for item 0 is never used."""
        return self.settings["maxIndexNum"]

    @property
    def commit_log_file_size(self) -> int:
        return self.settings["mappedFileSizeCommitLog"]

    @property
    def queue_file_size(self) -> int:
        return self.settings["mappedFileSizeConsumeQueue"]

    @cached_property
    def messages(self) -> list[dict[str, Any]]:
        """Every record of the log, in order, as ``MessageDecoder`` read it."""
        return self.load("messages.jsonl")

    @cached_property
    def records(self) -> list[Record]:
        """The log as the twin reads it, up to the first record that fails: for brute-force comparisons."""
        return read_log(self.store)

    @cached_property
    def log_files(self) -> list[dict[str, Any]]:
        """Per CommitLog file: how many records, how it ends, size of its blank."""
        return self.load("commitlog_files.json")

    @cached_property
    def headers(self) -> list[dict[str, Any]]:
        """The header of every index file, oldest first."""
        return self.load("index_headers.json")

    @cached_property
    def checkpoint(self) -> dict[str, int]:
        return self.load("checkpoint.json")

    @cached_property
    def log_range(self) -> tuple[int, int]:
        """Where the log begins and ends for the opened store."""
        answer = self.load("log_range.json")
        return answer["min_physical_offset"], answer["max_physical_offset"]

    @cached_property
    def entries(self) -> list[dict[str, Any]]:
        """Every ConsumeQueue entry, queue by queue."""
        return self.load("consume_queues.jsonl")

    @cached_property
    def queue_ranges(self) -> list[dict[str, Any]]:
        """Smallest and largest queue offset of every queue."""
        return self.load("consume_queue_ranges.json")

    @cached_property
    def queries(self) -> list[dict[str, Any]]:
        """Questions by key, with ``index_offsets`` and ``store_offsets``."""
        return self.load("queries.json")

    @cached_property
    def live_queries(self) -> list[dict[str, Any]]:
        """The same questions asked through a running broker and its client; clean sets only."""
        return self.load("live_queries.json")

    @cached_property
    def ids(self) -> list[dict[str, Any]]:
        return self.load("ids.json")

    @cached_property
    def offsets_by_time(self) -> list[dict[str, Any]]:
        return self.load("offsets_by_time.json")

    @cached_property
    def damage(self) -> list[list[Any]]:
        """The edits of a damaged set: ``[file, position, old bytes, new bytes]``, in hex."""
        return self.load("damage.json")["edits"]


@dataclass(frozen=True)
class GoldenIndexFile:
    """One file that RocketMQ's ``IndexFile`` class wrote alone, with its puts and its answers."""

    name: str
    settings: dict[str, Any]

    @property
    def path(self) -> Path:
        return INDEX_FILES_FOLDER / self.name / "20231114221320000"

    @cached_property
    def puts(self) -> list[list[Any]]:
        """``[text, physical offset, store time, accepted]``, in order."""
        return load(INDEX_FILES_FOLDER / self.name / "puts.json")

    @cached_property
    def queries(self) -> list[list[Any]]:
        """``[text, max, begin, end, isTimeMatched, offsets]``."""
        return load(INDEX_FILES_FOLDER / self.name / "queries.json")


INDEX_FILES = tuple(
    GoldenIndexFile(settings["name"], settings) for settings in load(INDEX_FILES_FOLDER / "cases.json")
)
