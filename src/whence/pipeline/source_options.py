"""The options of ``spark.read.format("whence")``, in the manner of Spark's Kafka source.

path                                    the store: a path or a file:// address
out                                     the sidecar, if it does not lie beside the store
rows                                    message: a row a message; key: a row for each distinct key of a message
columns                                 which columns, in this order; Spark does not tell a source which it needs
startingOffsets, endingOffsets          earliest, latest, or a physical offset; the end is left out
startingTimestamp, endingTimestamp      of storing: ISO 8601 or epoch ms; the end is left out. A stream begins at
                                        the first such message, and takes all behind it
minPartitions                           into how many tasks at least a scan is cut, as far as that can be
mode                                    failfast: damage is an error; permissive: it is told in column damage
failOnDataLoss                          whether it is an error that what was asked for has expired
scan                                    true: trust no index and no time blocks
pushdown                                auto: filters narrow what is read, where each query has a plan of its own
                                        (fresh_scans.py); always: this load() serves one query only; never
maxBytesPerTrigger, maxFilesPerTrigger  how many bytes, or files, of the log one batch of a stream takes
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from whence.errors import UsageError
from whence.lookup.question import parse_time
from whence.store.message_columns import COLUMNS, DAMAGE, KEY, TYPES

EARLIEST = "earliest"
LATEST = "latest"
AUTO, ALWAYS, NEVER = "auto", "always", "never"
NAMES = (
    "path",
    "out",
    "rows",
    "columns",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "minPartitions",
    "mode",
    "failOnDataLoss",
    "scan",
    "pushdown",
    "maxBytesPerTrigger",
    "maxFilesPerTrigger",
)
_SPELLED = {name.lower(): name for name in NAMES}
# What others call a column.
_COLUMNS = {"subscribe": "topic", "topics": "topic", "since": "store_time", "until": "store_time"}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What the options say. Offsets are numbers, EARLIEST or LATEST; times are epoch milliseconds."""

    path: str
    out: str | None = None
    by_key: bool = False
    columns: tuple[str, ...] = ()
    starting: int | str | None = None
    ending: int | str | None = None
    starting_ms: int | None = None
    ending_ms: int | None = None
    min_partitions: int = 1
    permissive: bool = False
    fail_on_data_loss: bool = True
    scan: bool = False
    pushdown: str = AUTO
    max_bytes_per_trigger: int | None = None
    max_files_per_trigger: int | None = None

    @property
    def schema(self) -> str:
        """The columns with their types, as Spark writes a schema."""
        return ", ".join(f"{name} {TYPES[name]}" for name in self.columns)


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Read what a user gave; a UsageError names what cannot be."""
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(options.keys() - _SPELLED.keys() - {"paths"})
    if unknown:
        raise UsageError(f"option {unknown[0]!r} is not known; {_meant(unknown[0])}")
    if "path" not in options:
        what = "several paths are given" if "paths" in options else "no path is given"
        raise UsageError(f'{what}: load("store") reads one store')
    if {"maxbytespertrigger", "maxfilespertrigger"} <= options.keys():
        raise UsageError("maxBytesPerTrigger and maxFilesPerTrigger exclude each other")
    by_key = _choice(options, "rows", "message", "key") == "key"
    permissive = _choice(options, "mode", "failfast", "permissive") == "permissive"
    starting, ending = _offset(options, "startingOffsets"), _offset(options, "endingOffsets")
    starting_ms, ending_ms = _time(options, "startingTimestamp"), _time(options, "endingTimestamp")
    _check_order("Offsets", starting, ending)
    _check_order("Timestamp", starting_ms, ending_ms)
    return SourceOptions(
        path=options["path"],
        out=options.get("out"),
        by_key=by_key,
        columns=_columns(options.get("columns"), by_key, permissive),
        starting=starting,
        ending=ending,
        starting_ms=starting_ms,
        ending_ms=ending_ms,
        min_partitions=_number(options, "minPartitions") or 1,
        permissive=permissive,
        fail_on_data_loss=_choice(options, "failOnDataLoss", "true", "false") == "true",
        scan=_choice(options, "scan", "false", "true") == "true",
        pushdown=_choice(options, "pushdown", AUTO, ALWAYS, NEVER),
        max_bytes_per_trigger=_number(options, "maxBytesPerTrigger"),
        max_files_per_trigger=_number(options, "maxFilesPerTrigger"),
    )


def _meant(name: str) -> str:
    """What a user may have meant by an option that there is not."""
    if name == "location":  # what "create table" says
        return "a store is no table of a catalog: create temporary view … using whence options (path …)"
    column = _COLUMNS.get(name, name)
    if column in TYPES:
        hint = 'rows of keys have it, option("rows", "key"), and ' if column == KEY else ""
        return f'{column} is a column: {hint}where("{column} = …") asks for it'
    from difflib import get_close_matches

    near = get_close_matches(name, _SPELLED, n=1, cutoff=0.75)
    return f"did you mean {_SPELLED[near[0]]}?" if near else f"there are {', '.join(NAMES)}"


def _choice(options: Mapping[str, str], name: str, *choices: str) -> str:
    """One of some words, in any case; the first if none is given."""
    value = options.get(name.lower(), choices[0]).lower()
    if value not in choices:
        raise UsageError(f"option {name} is {' or '.join(choices)}, not {value!r}")
    return value


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise UsageError(f"option {name} is a whole number above 0, not {text!r}")
    return int(text)


def _offset(options: Mapping[str, str], name: str) -> int | str | None:
    text = options.get(name.lower())
    if text is None or text.lower() in (EARLIEST, LATEST):
        return None if text is None else text.lower()
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise UsageError(f"option {name} is {EARLIEST}, {LATEST} or a physical offset, not {text!r}")
    return int(text)


def _time(options: Mapping[str, str], name: str) -> int | None:
    try:
        return parse_time(options.get(name.lower()), int(time.time() * 1000))
    except UsageError as error:
        raise UsageError(f"option {name}: {error}") from None


def _check_order(name: str, starting: int | str | None, ending: int | str | None) -> None:
    if isinstance(starting, int) and isinstance(ending, int) and starting > ending:
        raise UsageError(f"starting{name} {starting} lies behind ending{name} {ending}")


def _columns(text: str | None, by_key: bool, permissive: bool) -> tuple[str, ...]:
    """The columns that are asked for. Where damage is passed over, the one that tells it is always there."""
    known = (*((KEY,) if by_key else ()), *COLUMNS, *((DAMAGE,) if permissive else ()))
    names = known if text is None else tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in known:
            hint = ""
            if name == KEY:
                hint = '; rows of keys have it: option("rows", "key")'
            elif name == DAMAGE:
                hint = '; option("mode", "permissive") adds it'
            raise UsageError(f"there is no column {name!r}{hint or '; there are ' + ', '.join(known)}")
        if names.count(name) > 1:
            raise UsageError(f"option columns names {name!r} twice")
    return names if DAMAGE in names or not permissive else (*names, DAMAGE)
