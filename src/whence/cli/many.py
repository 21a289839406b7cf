"""``whence find`` for very many keys: a row for each key and message, written batch by batch."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from whence.cli.options import spark_settings
from whence.cli.progress import Progress
from whence.cli.render import many_receipt_text
from whence.cli.terminal import Screen, printable, time_text
from whence.errors import UsageError
from whence.files.atomic import write_aside
from whence.lookup.answer import as_json

if TYPE_CHECKING:
    from whence.cli.job_bars import JobBars
    from whence.door import Store
    from whence.lookup.asked_keys import Keys
    from whence.lookup.many_answer import ManyReceipt
    from whence.lookup.many_columns import ManyBatches
    from whence.pipeline.many import ManyOnSpark
    from whence.pipeline.runner import JobState

    AnyBatches = ManyBatches | ManyOnSpark

BINARY = ("arrow", "parquet")
NOT_ASKED = ("id", "offset", "queue_offset", "field", "cursor")
"""What cannot be asked together with very many keys."""
ASKED = ("topic", "queue", "since", "until", "tag", "limit", "oldest_first", "system_topics", "scan", "no_scan")
ROW_GROUP = 1_048_576  # rows in a row group of Parquet
HEADERS = {
    "queue_offset": "queue offset",
    "physical_offset": "physical offset",
    "store_timestamp_ms": "stored (UTC)",
}


def find_rows(given: Namespace, keys: Keys, stores: Store, screen: Screen, chosen: str) -> ManyReceipt:
    """Put the keys to the stores, write the rows and tell the receipt."""
    for name in NOT_ASKED:
        if getattr(given, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} cannot be asked together with rows of keys; leave it or --rows key out")
    if chosen in BINARY and given.output is None:
        raise UsageError(f"--format {chosen} is for programs; name a file with -o")
    question = {name: getattr(given, name) for name in ASKED}
    with ExitStack() as stack:
        on_missing = None
        if given.missing is not None:
            on_missing = _line_writer(stack.enter_context(write_aside(Path(given.missing))))
        batches = stores.find_many_batches(
            keys,
            columns=_columns(given),
            on_missing=on_missing,
            spark=spark_settings(given) if given.master is not None or given.conf else None,
            log_file=None if given.log_file is None else Path(given.log_file),
            progress=stack.enter_context(Progress("scanned", quiet=given.quiet)),
            watcher=_Bars(stack, quiet=given.quiet),
            **question,
        )
        _WRITERS[chosen](batches, screen)
    receipt = batches.receipt
    if chosen == "json":
        return receipt
    if chosen == "table":
        if receipt.rows and not given.quiet:
            screen.line()
        many_receipt_text(receipt, screen, only_trouble=given.quiet)
    elif not given.quiet:
        errors = Screen.of(sys.stderr)
        if chosen == "jsonl":
            errors.line(as_json({"receipt": receipt.to_dict()}))
        else:
            many_receipt_text(receipt, errors)
    return receipt


class _Bars:
    """The progress of jobs, if there are some."""

    def __init__(self, stack: ExitStack, *, quiet: bool) -> None:
        self._stack = stack
        self._quiet = quiet
        self._bars: JobBars | None = None

    def __call__(self, state: JobState) -> None:
        if self._bars is None:
            from whence.cli.job_bars import JobBars

            self._bars = self._stack.enter_context(JobBars(quiet=self._quiet))
        self._bars(state)


def _columns(given: Namespace) -> list[str] | None:
    """What the rows tell of their messages; None for where they lie."""
    from whence.lookup.message_lines import COLUMNS

    if given.columns is not None:
        names = [name.strip() for name in given.columns.split(",")]
        return [*names, "body"] if given.body and "body" not in names else names
    return list(COLUMNS) if given.body else None


def _line_writer(file: BinaryIO) -> Callable[[Any], None]:
    """Writes the texts of an Arrow array, one a line."""

    def write(texts: Any) -> None:
        file.write(b"".join(b"%b\n" % text for text in texts.cast("binary").to_pylist()))

    return write


# -- formats ---------------------------------------------------------------------------------------------------


def _write_table(batches: AnyBatches, screen: Screen) -> None:
    """Rows in columns; those of each batch are as wide as it needs."""
    from whence.lookup.message_lines import shown_columns

    names = [name for name in batches.schema.names if name != "body"]
    headers = [HEADERS.get(name, name.replace("_", " ")) for name in names]
    is_first = True
    for batch in batches:
        columns = [_shown(name, column.to_pylist()) for name, column in shown_columns(batch) if name != "body"]
        header, *lines = screen.table_lines(headers, list(zip(*columns, strict=True)), uncut=("stored (UTC)",))
        if is_first:
            screen.line(screen.bold(header))
            is_first = False
        bodies = batch.column("body").to_pylist() if "body" in batch.schema.names else [None] * len(lines)
        for line, body in zip(lines, bodies, strict=True):
            screen.line(line)
            if body is not None:
                screen.line("    " + printable(body.decode("utf-8", "backslashreplace")))


def _shown(name: str, values: list[Any]) -> list[Any]:
    if name.endswith("_timestamp_ms"):
        return [time_text(value) for value in values]
    return [value if isinstance(value, str | int | None) else _text(value) for value in values]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(f"{each[0]}={each[1]}" if isinstance(each, tuple) else str(each) for each in value)
    return str(value)


def _write_json(batches: AnyBatches, screen: Screen) -> None:
    """One document: the form of ``find --json``, where each message says which key asked for it."""
    from whence.lookup.message_lines import json_rows

    out = _binary(screen)
    out.write(f'{{"question": {as_json(batches.question.to_dict())}, "messages": ['.encode())
    is_first = True
    for batch in batches:
        # A line end stands behind a row only: inside of a text it is escaped.
        rows = bytes(json_rows(batch))[:-1].replace(b"\n", b",\n")
        out.write(rows if is_first else b",\n" + rows)
        is_first = False
    out.write(f'], "receipt": {as_json(batches.receipt.to_dict())}}}\n'.encode())


def _write_json_lines(batches: AnyBatches, screen: Screen) -> None:
    from whence.lookup.message_lines import json_rows

    out = _binary(screen)
    for batch in batches:
        out.write(json_rows(batch))


def _write_csv(batches: AnyBatches, screen: Screen) -> None:
    from whence.lookup.message_lines import csv_head, csv_rows

    out = _binary(screen)
    out.write(csv_head(batches.schema.names))
    for batch in batches:
        lines = csv_rows(batch)
        if screen.is_terminal:
            text = bytes(lines).decode("utf-8", "backslashreplace")
            screen.stream.write("\n".join(map(printable, text.split("\n"))))
        else:
            out.write(lines)


def _write_arrow(batches: AnyBatches, screen: Screen) -> None:
    import pyarrow as pa

    with pa.ipc.new_file(_binary(screen), batches.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _write_parquet(batches: AnyBatches, screen: Screen) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    with parquet.ParquetWriter(_binary(screen), batches.schema) as writer:
        for held in _row_groups(batches):
            writer.write_table(pa.Table.from_batches(held, batches.schema))


def _row_groups(batches: AnyBatches) -> Iterator[list[Any]]:
    held: list[Any] = []
    for batch in batches:
        held.append(batch)
        if sum(map(len, held)) >= ROW_GROUP or sum(each.nbytes for each in held) >= ROW_GROUP * 256:
            yield held
            held = []
    if held:
        yield held


def _binary(screen: Screen) -> BinaryIO:
    """The bytes beneath a screen."""
    screen.stream.flush()
    return screen.stream.buffer


_WRITERS: dict[str, Callable[[AnyBatches, Screen], None]] = {
    "table": _write_table,
    "json": _write_json,
    "jsonl": _write_json_lines,
    "csv": _write_csv,
    "arrow": _write_arrow,
    "parquet": _write_parquet,
}


@contextmanager
def open_keys(path: str) -> Iterator[BinaryIO]:
    """The file of ``--keys-from``; ``-`` is standard input."""
    from whence.files.plain_file import open_stream

    if path == "-":
        yield sys.stdin.buffer
    else:
        with open_stream(Path(path)) as file:
            yield file
