"""The terminal: how wide it is, whether it takes colours, and what must never reach it raw."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TextIO

WIDTH_MIN = 60  # a narrower terminal wraps lines by itself
COLUMN_MIN = 8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Screen:
    """Where text goes: a terminal of some width, or a pipe or file, in which nothing is cut or coloured."""

    def __init__(self, stream: TextIO, *, is_terminal: bool = False) -> None:
        self.stream = stream
        self.width = _width(stream) if is_terminal else None
        self.colours = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    @classmethod
    def of(cls, stream: TextIO) -> Screen:
        """The screen of standard output or standard error."""
        return cls(stream, is_terminal=stream.isatty())

    @property
    def is_terminal(self) -> bool:
        return self.width is not None

    def line(self, text: str = "") -> None:
        self.stream.write(text + "\n")

    def bold(self, text: str) -> str:
        return self._styled("1", text)

    def dim(self, text: str) -> str:
        return self._styled("2", text)

    def red(self, text: str) -> str:
        return self._styled("31", text)

    def green(self, text: str) -> str:
        return self._styled("32", text)

    def _styled(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colours else text

    def paragraph(self, text: str, indent: str = "", first: str | None = None) -> None:
        """Prose, wrapped; ``first`` stands before its first line, ``indent`` before the others."""
        from textwrap import wrap

        width = min(self.width or 100, 100)
        lines = wrap(
            text,
            width,
            initial_indent=indent if first is None else first,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines:
            self.line(line)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[object]], indent: str = "") -> None:
        """Rows under their headers. Numbers stand right; on a terminal the widest texts are cut so that all fits."""
        header, *lines = self.table_lines(headers, rows, indent)
        self.line(self.bold(header))
        for line in lines:
            self.line(line)

    def table_lines(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[object]],
        indent: str = "",
        uncut: Sequence[str] = (),
    ) -> list[str]:
        """The header line and one line for each row. The columns in ``uncut`` are not narrowed: they are copied."""
        cells = [[_cell(value) for value in row] for row in rows]
        numeric = [all(isinstance(row[i], int) or row[i] is None for row in rows) for i in range(len(headers))]
        widths = [max([width_of(header), *(width_of(row[i]) for row in cells)]) for i, header in enumerate(headers)]
        if self.width is not None:
            fixed = [is_number or headers[i] in uncut for i, is_number in enumerate(numeric)]
            _narrow(widths, fixed, self.width - len(indent) - 2 * (len(widths) - 1))

        def joined(texts: Sequence[str]) -> str:
            padded = [
                _pad(text, width, right=right) for text, width, right in zip(texts, widths, numeric, strict=True)
            ]
            return (indent + "  ".join(padded)).rstrip()

        return [joined(headers), *(joined(row) for row in cells)]


def _width(stream: TextIO) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns) > 0:
        return max(int(columns), WIDTH_MIN)
    try:
        return max(os.get_terminal_size(stream.fileno()).columns, WIDTH_MIN)
    except (OSError, ValueError):
        return 80


def _cell(value: object) -> str:
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) else str(value)


def _narrow(widths: list[int], fixed: list[bool], total: int) -> None:
    """Take from the widest column that may be cut until all fits, or until none is left to take from."""
    while sum(widths) > total:
        texts = [i for i, is_fixed in enumerate(fixed) if not is_fixed and widths[i] > COLUMN_MIN]
        if not texts:
            return
        widest = max(texts, key=lambda i: widths[i])
        widths[widest] -= 1


def _pad(text: str, width: int, *, right: bool) -> str:
    if width_of(text) > width:
        text = _cut(text, width)
    space = " " * (width - width_of(text))
    return space + text if right else text + space


def _cut(text: str, width: int) -> str:
    """As much of a text as fits, with a sign that there is more. One pass: a key may have 32,000 characters."""
    columns = 0
    for at, char in enumerate(text):
        columns += _columns(char)
        if columns > width - 1:
            return text[:at] + "…"
    return text + "…"


def width_of(text: str) -> int:
    """How many columns a terminal gives to a printable text: two for a wide character, none for a mark on one."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(char: str) -> int:
    from unicodedata import combining, east_asian_width

    return 0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1


def printable(text: str) -> str:
    """``text`` with an escape for all that a terminal would obey or hide.

    A topic or key comes out of a log that anybody may have written to. Control characters and escape sequences
    could move the cursor or change what stands on the screen, marks for the direction of writing and invisible
    characters could make one name look like another.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def time_text(timestamp_ms: int) -> str:
    """Epoch milliseconds as ISO 8601 in UTC; the number itself where no calendar goes."""
    try:
        time = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"{timestamp_ms} ms"
    return time.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def size_text(size: int) -> str:
    """A number of bytes in words."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes" if size != 1 else "1 byte"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """``3 messages``, ``1 message``, ``no messages``."""
    several = plural or noun + "s"
    return f"1 {noun}" if count == 1 else f"{count or 'no'} {several}"


def complain(text: str) -> None:
    """One line on standard error."""
    try:
        sys.stderr.write(f"whence: {printable(text)}\n")
        sys.stderr.flush()
    except OSError:
        pass  # nobody is listening
