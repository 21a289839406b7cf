"""Inspections as text: a sentence, the facts, the rows."""

from __future__ import annotations

import json
from typing import Any

from whence.cli.terminal import Screen, printable, size_text, time_text
from whence.store.inspection import Inspection


def inspection_text(inspection: Inspection, screen: Screen) -> None:
    screen.line(screen.bold(printable(f"{inspection.path}: {inspection.kind}, {_bytes(inspection.size)}")))
    screen.paragraph(printable(inspection.words))
    screen.line()
    width = max((len(_label(name)) for name in inspection.facts), default=0)
    for name, value in inspection.facts.items():
        if not isinstance(value, list):
            screen.line(f"  {_label(name):<{width}}  {printable(_text(name, value))}".rstrip())
    for name, value in inspection.facts.items():
        if isinstance(value, list):
            _rows(f"{_label(name)}:", value, screen)
    if inspection.rows:
        _rows("", inspection.rows, screen)
    if inspection.next_start is not None:
        screen.line(f"... more: --from {inspection.next_start}, or --all")
    for damage in inspection.damage:
        screen.line(screen.red(f"{damage.kind} at byte {damage.position}") + f": {printable(damage.detail)}")


def _rows(title: str, rows: list[dict[str, Any]], screen: Screen) -> None:
    screen.line()
    if title:
        screen.line(title)
    names = list(dict.fromkeys(name for row in rows for name in row))
    names = [name for name in names if any(row.get(name) not in (None, []) for row in rows)]
    shown = [[_value(name, row.get(name)) for name in names] for row in rows]
    screen.table([_label(name) for name in names], shown, "  ")


def _label(name: str) -> str:
    """A field's name in words; a time is shown as one, so its unit goes."""
    return (name.removesuffix("_ms") if name.endswith("timestamp_ms") else name).replace("_", " ")


def _value(name: str, value: Any) -> object:
    """A table's cell: numbers stay numbers, so that they stand right."""
    if isinstance(value, int) and not isinstance(value, bool) and not name.endswith("timestamp_ms"):
        return value
    return _text(name, value)


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("timestamp_ms"):
        return time_text(value) if value else "0"
    if isinstance(value, list):
        return " ".join(str(each) for each in value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)


def _bytes(size: int) -> str:
    return f"{size} bytes" if size < 1024 else f"{size} bytes ({size_text(size)})"
