"""Answers as text, JSON, JSON lines and CSV: one dataclass, four faces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence.cli.terminal import Screen, counted, printable, size_text, time_text, width_of
from whence.errors import FormatError
from whence.formats.rocketmq.message import Message
from whence.lookup.answer import MESSAGE_FIELDS, Answer, Receipt, as_json, csv_fields, message_to_dict

if TYPE_CHECKING:
    from whence.lookup.many_answer import ManyReceipt
    from whence.pipeline.build import Built
    from whence.pipeline.export import Exported
    from whence.pipeline.repair import Repaired
    from whence.pipeline.verify import Verified
    from whence.store.damage import Damage
    from whence.store.expiry import Expired
    from whence.store.findings import Finding

HEADERS = (
    "stored (UTC)",
    "topic",
    "queue",
    "queue offset",
    "physical offset",
    "keys",
    "tags",
    "unique id",
    "size",
)
BINARY_SHOWN = 256  # bytes of a body that is no text; JSON has them all
TOPICS_SHOWN = 20
DAMAGE_SHOWN = 20
LOG_FILES_SHOWN = 20
BUILT_FILES = (("index", "index file"), ("queues", "queue file"), ("times", "time file"))

WHY_EMPTY = {
    "damaged": "part of the log cannot be read, and it may be there. The damage is listed below",
    "not_indexed": "part of the log has no index, and --no-scan forbids to scan it. Leave --no-scan out",
    "no_such_topic": "the store has no topic of that name. Names are case-sensitive; leave --topic out to ask all",
    "expired": "the place that was asked for lies before the log's first byte: it was deleted or archived",
    "beyond_end": "the place that was asked for lies behind the log's end: nothing was stored there yet",
    "outside_window": "messages match, but none was stored in that window. Widen --since and --until",
    "filtered": "messages match but for --tag, --field or the --where of an export. Leave it out to see them",
    "probably_expired": "an index file knows the hash of the key, but its part of the log was deleted or archived",
    "no_such_key": "all of it was searched, and no message matches. Keys and ids are compared whole, with their case",
}
NOT_INDEXED_FIELD = (
    "part of the log has no index of the field, which nobody can look up without its expression. whence build adds "
    "what is missing; --scan computes it, on Spark"
)


# JSON


def answer_json(answer: Answer, screen: Screen, *, body: bool) -> None:
    screen.line(as_json(answer.to_dict(body=body)))


def answer_json_lines(answer: Answer, screen: Screen, *, body: bool) -> None:
    for message in answer:
        screen.line(as_json(message_to_dict(message, body=body)))


def answer_csv(answer: Answer, screen: Screen, *, body: bool) -> None:
    """A line of names, then one for each message; on a terminal, texts are made harmless first."""
    import csv

    writer = csv.DictWriter(screen.stream, MESSAGE_FIELDS, lineterminator="\n")
    writer.writeheader()
    for message in answer:
        shown = csv_fields(message, body=body)
        if screen.is_terminal:
            shown = {name: printable(value) if isinstance(value, str) else value for name, value in shown.items()}
        writer.writerow(shown)


# Text


def answer_table(answer: Answer, screen: Screen, *, body: bool) -> None:
    """The messages, one a line, each with its body below it if that was asked for.

    On a terminal that is too narrow for a table with whole times and ids, each takes two lines.
    """
    if not answer.messages:
        return
    rows = [_row(message) for message in answer]
    header, *lines = screen.table_lines(HEADERS, rows, uncut=("stored (UTC)", "unique id"))
    if screen.width is None or max(map(width_of, lines)) <= screen.width:
        screen.line(screen.bold(header))
    else:
        lines = [_two_lines(row) for row in rows]
    for line, message in zip(lines, answer, strict=True):
        screen.line(line)
        if body:
            _body(message, screen)


def _two_lines(row: tuple[object, ...]) -> str:
    stored, topic, queue, queue_offset, physical_offset, keys, tags, unique_id, size = row
    first = f"{stored}  {topic}  queue {queue} at {queue_offset}, offset {physical_offset}, {size} bytes"
    named = (("keys", keys), ("tags", tags), ("id", unique_id))
    second = "  ".join(f"{name} {value}" for name, value in named if value)
    return f"{printable(first)}\n    {printable(second)}"


def _row(message: Message) -> tuple[object, ...]:
    return (
        time_text(message.store_timestamp_ms),
        message.topic,
        message.queue,
        message.queue_offset,
        message.physical_offset,
        " ".join(message.keys),
        message.tags,
        message.unique_id,
        message.size,
    )


def _body(message: Message, screen: Screen) -> None:
    try:
        body = message.body
    except FormatError as error:
        screen.line(screen.red(f"    the body cannot be read: {printable(str(error))}"))
        return
    try:
        lines = body.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        shown = body[:BINARY_SHOWN]
        lines = [shown[at : at + 32].hex(" ", 4) for at in range(0, len(shown), 32)]
        if len(shown) < len(body):
            lines.append(f"... {len(body)} bytes that are no text; --json gives them all, as base64")
    for line in lines:
        screen.line("    " + printable(line.removesuffix("\r")))


FORMATS: dict[str, Callable[..., None]] = {
    "table": answer_table,
    "json": answer_json,
    "jsonl": answer_json_lines,
    "csv": answer_csv,
}


def receipt_text(answer: Answer, screen: Screen, *, only_trouble: bool = False) -> None:
    """The receipt in words. ``only_trouble``: nothing if the answer is whole and nothing is damaged."""
    receipt = answer.receipt
    if only_trouble and receipt.complete and not receipt.damage:
        return
    screen.line(_headline(answer, screen))
    if receipt.why_empty is not None:
        why = WHY_EMPTY[receipt.why_empty]
        if receipt.why_empty == "not_indexed" and answer.question.fields:
            why = NOT_INDEXED_FIELD
        screen.paragraph(f"Why: {why}.", "  ", "  ")
    facts = [] if only_trouble else [*_logs(receipt), *_work(receipt)]
    for name, text in facts:
        screen.paragraph(text, " " * 13, f"  {name:<11}")
    if receipt.cursor is not None and not only_trouble:
        screen.line(f"  next page  the same command with --cursor {receipt.cursor}")  # in one line, to be copied
    damage_text(receipt.damage, screen)


def many_receipt_text(receipt: ManyReceipt, screen: Screen, *, only_trouble: bool = False) -> None:
    """The receipt for very many keys in words. ``only_trouble``: nothing if the answer is whole."""
    if only_trouble and receipt.complete and not receipt.damage:
        return
    count = f"{counted(receipt.rows, 'row')} for {counted(receipt.keys, 'key')}".capitalize()
    if receipt.keys_missing:
        count += f"; {receipt.keys_missing} of them {'is' if receipt.keys_missing == 1 else 'are'} in no message"
    if receipt.truncated:
        count += "; some keys are in more messages than --limit says"
    screen.paragraph(f"{count}. {_completeness(receipt, screen)}")
    if receipt.why_empty is not None:
        screen.paragraph(f"Why: {WHY_EMPTY[receipt.why_empty]}.", "  ", "  ")
    for name, text in [] if only_trouble else [*_logs(receipt), *_work(receipt)]:
        screen.paragraph(text, " " * 13, f"  {name:<11}")
    damage_text(receipt.damage, screen)


def damage_text(found: Sequence[Damage], screen: Screen) -> None:
    """What is wrong, place by place."""
    for damage in found[:DAMAGE_SHOWN]:
        mark = screen.red if damage.kind.hides_messages else screen.dim
        where = printable(f"{damage.path} at byte {damage.position}: {damage.detail}")
        screen.paragraph(f"{mark(damage.kind.value)}: {where}", "    ", "  ")
    if len(found) > DAMAGE_SHOWN:
        screen.line(f"  ... and damage at {len(found) - DAMAGE_SHOWN} places more; --json has it all")


def _headline(answer: Answer, screen: Screen) -> str:
    receipt = answer.receipt
    count = counted(len(answer), "message").capitalize()
    if len(answer) > 1:
        count += ", oldest first" if answer.question.oldest_first else ", newest first"
    if receipt.complete and receipt.truncated:
        return f"{count}; more match. The answer is {screen.green('complete')} up to here."
    return f"{count}. {_completeness(receipt, screen)}"


def _completeness(receipt: Receipt, screen: Screen) -> str:
    if receipt.damaged:
        return f"{screen.red('The answer is NOT complete')}: damage hides part of the log."
    if not receipt.complete:
        return f"{screen.red('The answer is NOT complete')}: part of the log was not looked at."
    return f"The answer is {screen.green('complete')}."


def _logs(receipt: Receipt) -> list[tuple[str, str]]:
    """Which part of which log was searched, and how far an index reaches."""
    facts = []
    for store, log in [(log.store, log.receipt) for log in receipt.logs] or [("", receipt)]:
        if store:
            facts.append(("store", printable(store)))
        facts.append(("searched", f"offsets {log.searched_from_offset} to {log.searched_to_offset} of the log"))
        facts.append(("index", _index(log)))
    return facts


def _index(receipt: Receipt) -> str:
    walked = receipt.index_files - receipt.index_files_skipped
    if receipt.index_source == "none":
        return f"not used; the store has {counted(receipt.index_files, 'index file')}"
    text = f"{walked} of {counted(receipt.index_files, 'file')} walked, {receipt.index_files_skipped} skipped"
    if receipt.index_source == "broker":
        text += "; the broker built them, and only --scan can prove that it left nothing out"
    if receipt.indexed_to_offset is not None and receipt.indexed_to_timestamp_ms is not None:
        until = time_text(receipt.indexed_to_timestamp_ms)
        text += f"; they reach to offset {receipt.indexed_to_offset}, stored {until}"
    return text


def _work(receipt: Receipt) -> list[tuple[str, str]]:
    facts = []
    if receipt.topics_from == "broker":
        facts.append(("topics", "all that the broker's queues and configuration name"))
    elif receipt.topics_from == "sidecar":
        facts.append(("topics", "all in the log, as the sidecar's queues name them"))
    elif receipt.topics_from == "log":
        facts.append(("topics", "all in the log"))
    scanned = f"{size_text(receipt.scanned_bytes)} of log scanned" if receipt.scanned_bytes else "nothing scanned"
    checked = f"{counted(receipt.candidates, 'candidate')} checked in the log, {receipt.rejected} rejected"
    facts.append(("work", f"{counted(receipt.items_visited, 'item')} visited, {scanned}; {checked}"))
    if receipt.verified_by == "value_hash":
        facts.append(("values", "decided by 128 bits of their hash, which were kept when the field was indexed"))
    facts.append(("elapsed", f"{receipt.elapsed_us / 1000:.1f} ms"))
    return facts


def expired_text(expired: Expired, screen: Screen, *, dry_run: bool, older_than: str) -> None:
    """What went, or would go: the log files one by one, the rest as a count."""
    if not expired.files:
        screen.paragraph(
            f"Nothing to expire: no log file but the last is older than {older_than}, and nothing leads below the "
            f"log's begin at offset {expired.begin_offset}."
        )
    else:
        if expired.log_files:
            rows = [
                (expired.name_of(file), file.size, time_text(file.finished_ms))
                for file in expired.log_files[:LOG_FILES_SHOWN]
            ]
            screen.table(("log file", "bytes", "finished (UTC)"), rows)
            if len(expired.log_files) > LOG_FILES_SHOWN:
                screen.line(f"... and {len(expired.log_files) - LOG_FILES_SHOWN} more; --json has them all")
            screen.line()
        to = "" if expired.archive is None else f" to {printable(str(expired.archive))}"
        verb = ("moved" if expired.archive else "removed") if not dry_run else "would go"
        screen.paragraph(
            f"{counted(len(expired.log_files), 'log file').capitalize()}, "
            f"{counted(len(expired.queue_files), 'queue file')} and "
            f"{counted(len(expired.index_files), 'index file')}, {size_text(expired.size)}, {verb}{to}."
        )
    if expired.straddling_files:
        copied = "are" if dry_run else "were"
        screen.paragraph(
            f"{counted(len(expired.straddling_files), 'file').capitalize()} with older and newer parts stay; the "
            f"older parts {copied} copied."
        )
    if expired.files:
        would = "would begin" if dry_run else "begins"
        screen.line(f"The log {would} at offset {expired.new_begin_offset}; it began at {expired.begin_offset}.")
    if dry_run:
        screen.line("This was a dry run: nothing was changed.")


def built_text(built: Built, screen: Screen) -> None:
    """What a build did: how much it read and made, how far the log is indexed now, and what could not be read."""
    if not built.messages and not built.fields:
        screen.paragraph(f"Nothing is missing: the log is indexed up to its end, at offset {built.to_offset}.")
    elif built.messages:
        rate = size_text(int(built.bytes_read / max(built.elapsed_s, 0.001)))
        messages = counted(built.messages, "message")
        done = f"Indexed {messages} under {counted(built.items, 'key')}"
        if not built.count_of("index") and not built.count_of("queues"):
            done = f"Noted the times of {messages}"
        screen.paragraph(
            f"{done}, from offset {built.from_offset} to {built.to_offset}: {size_text(built.bytes_read)} in "
            f"{built.elapsed_s:.1f} s, {rate} a second."
        )
        for line in _written(built):
            screen.paragraph(line)
    for field in built.fields:
        screen.paragraph(
            f"Field {field.name}: {counted(field.new_items, 'value')} from offset {field.from_offset} to "
            f"{field.to_offset}; it has {counted(field.items, 'item')} in {counted(field.files, 'index file')}."
        )
    if built.without_folder:
        topics = ", ".join(map(printable, built.without_folder[:TOPICS_SHOWN]))
        screen.paragraph(f"No folder can be named after these topics, so they have no queues: {topics}.")
    for note in built.notes:
        screen.paragraph(f"{printable(note)}.")
    damage_text(built.damage, screen)


def _written(built: Built) -> Iterator[str]:
    """How many files were made, and where: time blocks lie in the sidecar, also where the rest is in the store."""
    made: dict[Path, list[str]] = {}
    for kind, noun in BUILT_FILES:
        if paths := [Path(file.path) for file in built.files if file.kind == kind]:
            folder = paths[0].parents[1] if kind == "times" else built.root
            made.setdefault(folder, []).append(counted(len(paths), noun))
    for folder, (*others, last) in made.items():
        listed = f"{', '.join(others)} and {last}" if others else last
        were = "was" if listed.startswith("1 ") and not others else "were"
        yield f"{listed} {were} written to {printable(_near(folder))}."


def exported_text(exported: Exported, screen: Screen) -> None:
    """What an export made, whether it is complete, and what could not be read."""
    files = f"{counted(len(exported.files), 'file')}, {size_text(exported.size)}"
    where = printable(_near(exported.target))
    screen.paragraph(f"{counted(exported.messages, 'message').capitalize()} were written to {where}: {files}.")
    receipt = exported.receipt
    searched = f"offsets {receipt.searched_from_offset} to {receipt.searched_to_offset} of the log were searched"
    if receipt.complete:
        screen.paragraph(f"It is {screen.green('complete')}: {searched}.")
    else:
        screen.paragraph(f"It is {screen.red('NOT complete')}: {searched}, and not all of it could be read.")
    if receipt.why_empty is not None:
        screen.paragraph(f"Why: {WHY_EMPTY[receipt.why_empty]}.", "  ", "  ")
    if exported.without_folder:
        topics = ", ".join(map(printable, exported.without_folder[:TOPICS_SHOWN]))
        screen.paragraph(f"No folder can be named after these topics, so theirs is null in the table: {topics}.")
    damage_text(receipt.damage, screen)


def verified_text(verified: Verified, screen: Screen) -> None:
    """What a verify found: in one line whether all is well, then what was held against what, then each place."""
    log = f"{counted(verified.messages, 'message')} from offset {verified.from_offset} to {verified.to_offset}"
    if verified.is_healthy:
        screen.line(f"{screen.green('Healthy')}: log and indexes agree.")
    else:
        screen.line(f"{screen.red('Damaged')}: {counted(len(verified.damage) + verified.unlisted, 'finding')}.")
    if verified.not_indexed_yet:
        log += f"; {verified.not_indexed_yet} of them, from offset {verified.judged_to} on, are not indexed yet"
    screen.paragraph(f"log       {log}", "          ", "")
    index = f"{counted(verified.files, 'file')}, {counted(verified.items, 'item')}{_badly(verified.index)}"
    screen.line(f"index     {index}, dialect {verified.dialect}")
    queues = f"{counted(verified.queue_count, 'queue')}, {counted(verified.entries, 'entry', 'entries')}"
    screen.line(f"queues    {queues}{_badly(verified.queues)}")
    for name, each in verified.fields.items():
        values = f"{counted(each.items, 'value')} in {counted(each.files, 'file')}{_badly(each.counts)}"
        screen.line(f"field     {printable(name)}, {values}")
    screen.line(f"judged    what lies in {printable(_near(verified.root))}")
    for habit in verified.habits:
        screen.paragraph(f"no damage {habit}", "          ")
    findings_text(verified.damage, screen)
    if verified.unlisted:
        screen.line(f"  ... and {counted(verified.unlisted, 'finding')} that are counted, but not listed")
    if verified.is_badly_indexed or verified.damaged_fields:
        screen.line('"whence repair" mends it; with --dry-run it only tells.')


def _badly(counts: Mapping[Any, int]) -> str:
    """How many of each kind, where there are some."""
    told = [f"{count} {kind.value.replace('_', ' ')}" for kind, count in counts.items() if count]
    return f"; {', '.join(told)}" if told else ""


def findings_text(found: Sequence[Finding], screen: Screen) -> None:
    """What is wrong, place by place."""
    for finding in found[:DAMAGE_SHOWN]:
        where = printable(f"{_near(finding.path)} at byte {finding.position}: {finding.detail}")
        screen.paragraph(f"{screen.red(finding.kind.value)}: {where}", "    ", "  ")
    if len(found) > DAMAGE_SHOWN:
        screen.line(f"  ... and {len(found) - DAMAGE_SHOWN} places more; --json has them")


def repaired_text(repaired: Repaired, screen: Screen) -> None:
    """What a repair did, file by file, and what is left."""
    if repaired.dry_run:
        if not repaired.left:
            screen.line("Nothing is damaged, so nothing would be mended.")
            return
        screen.line(f"{counted(repaired.found, 'finding').capitalize()}. What repair would do:")
        repairs = Counter((finding.repair, finding.path) for finding in repaired.left)
        for (repair, path), count in list(repairs.items())[:DAMAGE_SHOWN]:
            what = printable(f"{_near(path)} ({counted(count, 'finding')}): {repair}")
            screen.paragraph(what, "    ", "  ")
        if len(repairs) > DAMAGE_SHOWN:
            screen.line(f"  ... and {counted(len(repairs) - DAMAGE_SHOWN, 'file')} more; --json has them")
        screen.line("This was a dry run: nothing was changed.")
        return
    if not repaired.found:
        screen.line("Nothing is damaged, so nothing was mended.")
        return
    for each in repaired.mended[:DAMAGE_SHOWN]:
        screen.line(f"  {each.what:8}{printable(_near(Path(each.path)))}")
    if len(repaired.mended) > DAMAGE_SHOWN:
        screen.line(f"  ... and {counted(len(repaired.mended) - DAMAGE_SHOWN, 'file')} more; --json has them")
    screen.line(f"{counted(repaired.found, 'finding').capitalize()}, {counted(len(repaired.mended), 'file')} mended.")
    if repaired.left:
        screen.line(f"{screen.red('Left')}: {counted(len(repaired.left), 'finding')}.")
        findings_text(repaired.left, screen)


def _near(path: Path) -> str:
    """A path as seen from the folder in which the command was typed."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
