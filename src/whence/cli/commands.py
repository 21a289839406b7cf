"""The commands: parse, call, render. Each makes one call on the door; what is true of messages is decided below."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence import __version__
from whence.cli import options
from whence.cli.interrupt import Interrupts
from whence.cli.terminal import Screen, complain, counted
from whence.errors import FormatError, UsageError, WhenceError
from whence.lookup.question import LIMIT_DEFAULT

if TYPE_CHECKING:
    from logging import Logger

    from whence.door import Store
    from whence.lookup.answer import Answer, Receipt
    from whence.lookup.asked_keys import KeyLines, Keys
    from whence.pipeline.follow_state import FollowState

QUESTION = ("topic", "id", "offset", "queue", "queue_offset", "since", "until", "tag", "field")
"""The members of a question, beside the keys; one at least must be asked."""
FOLLOW_GRACE_S = 1.5  # so long a follower has to end by itself
FILES = {"keys_from": "--keys-from", "output": "-o", "missing": "--missing", "log_file": "--log-file"}
SETTINGS = ("cursor", "oldest_first", "system_topics", "scan", "no_scan")


class Status(IntEnum):
    """What the process tells its caller when it ends."""

    DONE = 0
    NOTHING = 1
    WRONG_USE = 2
    DAMAGE = 3
    INCOMPLETE = 4
    BUG = 70
    UNREAD = 141  # as the shell tells of a process that wrote to a pipe whose reader was gone


STATUS_OF_ERROR: tuple[tuple[type[Exception], Status], ...] = (
    (FormatError, Status.DAMAGE),
    (WhenceError, Status.WRONG_USE),
    (OSError, Status.WRONG_USE),
    (Exception, Status.BUG),
)
"""The exit status of an error: that of the first kind it belongs to."""


def status_of_receipt(receipt: Receipt, *, is_empty: bool) -> Status:
    if receipt.damaged:
        return Status.DAMAGE
    if not receipt.complete:
        return Status.INCOMPLETE
    return Status.NOTHING if is_empty else Status.DONE


# Commands


def find(given: Namespace) -> Status:
    chosen = _format(given)
    with _keys_of_rows(given, chosen) as keys:
        return _find_messages(given, chosen) if keys is None else _find_rows(given, chosen, keys)


def _find_messages(given: Namespace, chosen: str) -> Status:
    from whence.cli.progress import Progress
    from whence.cli.render import FORMATS, receipt_text
    from whence.door import open_stores
    from whence.lookup.answer import as_json

    question = _question(given)
    stores = open_stores(given.stores, out=given.out, slots=given.slots, items=given.items, dialect=given.dialect)
    with stores, _output(given) as screen:
        if given.scan and given.field:
            answer = _evaluated(given, stores, question)
        else:
            with Progress("scanned", quiet=given.quiet) as progress:
                answer = stores.find(progress=progress, **question)
        FORMATS[chosen](answer, screen, body=given.body)
        if chosen == "table":
            if answer.messages and not given.quiet:
                screen.line()
            receipt_text(answer, screen, only_trouble=given.quiet)
        elif chosen != "json" and not given.quiet:
            errors = Screen.of(sys.stderr)
            if chosen == "jsonl":
                errors.line(as_json({"receipt": answer.receipt.to_dict()}))
            else:
                receipt_text(answer, errors)
    _say_written(given, counted(len(answer), "message"))
    return status_of_receipt(answer.receipt, is_empty=not answer.messages)


def _evaluated(given: Namespace, stores: Store, question: dict[str, Any]) -> Answer:
    """Fields, evaluated on Spark."""
    from whence.cli.job_bars import JobBars

    with JobBars(quiet=given.quiet) as bars:
        return stores.find(
            spark=options.spark_settings(given),
            watcher=bars,
            log_file=None if given.log_file is None else Path(given.log_file),
            **question,
        )


def _find_rows(given: Namespace, chosen: str, keys: Keys) -> Status:
    from whence.cli.many import find_rows
    from whence.door import open_stores

    if given.missing is not None:
        _keep_out_of_stores(given.missing, given)
    stores = open_stores(given.stores, out=given.out, slots=given.slots, items=given.items, dialect=given.dialect)
    receipt = None
    with stores, _output(given) as screen:
        receipt = find_rows(given, keys, stores, screen, chosen)
    if receipt is not None:
        _say_written(given, counted(receipt.rows, "row"))
    return Status.UNREAD if receipt is None else status_of_receipt(receipt, is_empty=receipt.rows == 0)


def explain(given: Namespace) -> Status:
    from whence.cli.explanation import explanation_text
    from whence.cli.progress import Progress
    from whence.cli.render import answer_table, receipt_text
    from whence.door import open_stores
    from whence.lookup.answer import as_json

    chosen = _format(given)
    if given.keys_from is not None:
        given.keys = _few_keys(given)
    question = _question(given)
    stores = open_stores(given.stores, out=given.out, slots=given.slots, items=given.items, dialect=given.dialect)
    with stores, _output(given) as screen:
        with Progress("scanned", quiet=given.quiet) as progress:
            explanation = stores.explain(progress=progress, **question)
        if chosen == "json":
            screen.line(as_json(explanation.to_dict(body=given.body)))
        else:
            explanation_text(explanation, screen)
            answer_table(explanation.answer, screen, body=given.body)
            if explanation.answer.messages:
                screen.line()
            receipt_text(explanation.answer, screen)
    return status_of_receipt(explanation.answer.receipt, is_empty=not explanation.answer.messages)


def inspect(given: Namespace) -> Status:
    from whence.cli.inspection import inspection_text
    from whence.cli.progress import Progress
    from whence.lookup.answer import as_json
    from whence.store.inspection import inspect_file

    with _output(given) as screen:
        with Progress("read", quiet=given.quiet) as progress:
            inspection = inspect_file(
                Path(given.file),
                kind=given.kind,
                start=given.start,
                limit=None if given.all else given.limit,
                slots=given.slots,
                items=given.items,
                progress=progress,
            )
        if given.json:
            screen.line(as_json(inspection.to_dict()))
        else:
            inspection_text(inspection, screen)
    return Status.DAMAGE if inspection.damage else Status.DONE


def build(given: Namespace) -> Status:
    from whence.cli.render import built_text
    from whence.door import build_store

    _run_job(
        given,
        build_store,
        built_text,
        in_place=given.in_place,
        rebuild=given.rebuild,
        with_sums=given.json,
        fields=dict(given.fields),
    )
    return Status.DONE


def follow(given: Namespace) -> Status:
    from threading import Event

    from whence.cli.follow_lines import FollowLines
    from whence.door import follow_store

    stop = Event()
    # What ends by itself, and what Spark does before anything is followed, is interrupted as any job is.
    interrupts: Interrupts | None = None if given.once else given.interrupts

    def watch(state: FollowState) -> None:
        if interrupts is not None and not interrupts.is_handed_over:
            interrupts.hand_over(stop.set, FOLLOW_GRACE_S)
        if interrupts is not None and state.is_ended:
            interrupts.has_ended(_status_of_follower(state))
        lines(state)

    state = None
    with _output(given), FollowLines(given.stores[0], json=given.json, quiet=given.quiet) as lines:
        state = follow_store(
            given.stores[0],
            once=given.once,
            metrics_port=given.metrics_port,
            watcher=watch,
            stop=stop,
            out=given.out,
            slots=given.slots,
            items=given.items,
            dialect=given.dialect,
            spark=options.spark_settings(given),
            log_file=None if given.log_file is None else Path(given.log_file),
        )
    return Status.UNREAD if state is None else _status_of_follower(state)


def _status_of_follower(state: FollowState) -> Status:
    return Status.DAMAGE if state.damaged else Status.DONE


def verify(given: Namespace) -> Status:
    from whence.cli.render import verified_text
    from whence.door import verify_store

    return Status.DONE if _run_job(given, verify_store, verified_text).is_healthy else Status.DAMAGE


def repair(given: Namespace) -> Status:
    from whence.cli.render import repaired_text
    from whence.door import repair_store

    asked = {name: getattr(given, name) for name in ("in_place", "cut_tail", "dry_run")}
    return Status.DONE if _run_job(given, repair_store, repaired_text, **asked).is_healthy else Status.DAMAGE


def _run_job(given: Namespace, job: Callable[..., Any], text: Callable[[Any, Screen], None], **asked: Any) -> Any:
    """Run a job on Spark, tell what came of it, and give it back."""
    from whence.cli.job_bars import JobBars
    from whence.lookup.answer import as_json

    with _output(given) as screen:
        with JobBars(quiet=given.quiet) as bars:
            result = job(
                given.stores[0],
                out=given.out,
                slots=given.slots,
                items=given.items,
                dialect=given.dialect,
                jobs=given.jobs,
                spark=options.spark_settings(given),
                log_file=None if given.log_file is None else Path(given.log_file),
                watcher=bars,
                **asked,
            )
        if given.json:
            screen.line(as_json(result.to_dict()))
        elif not given.quiet or not result.is_healthy:
            text(result, screen)
    return result


def expire(given: Namespace) -> Status:
    from whence.cli.progress import Progress
    from whence.cli.render import expired_text
    from whence.door import expire_store
    from whence.lookup.answer import as_json

    with _output(given) as screen:
        with Progress("archived" if given.archive else "removed", quiet=given.quiet) as progress:
            expired = expire_store(
                given.stores[0],
                older_than=given.older_than,
                by=given.by,
                archive=given.archive,
                dry_run=given.dry_run,
                in_place=given.in_place,
                progress=progress,
            )
        if given.json:
            screen.line(as_json(expired.to_dict(dry_run=given.dry_run)))
        else:
            expired_text(expired, screen, dry_run=given.dry_run, older_than=given.older_than)
    return Status.DONE


def export(given: Namespace) -> Status:
    from whence.cli.render import exported_text
    from whence.door import export_store

    asked = {name: getattr(given, name) for name in ("target", "format", "where", "rebuild")}
    with _keys_of_file(given) as keys:
        question = {name: getattr(given, name) for name in (*QUESTION, "system_topics", "scan", "no_scan")}
        question["key"] = given.keys
        exported = _run_job(given, export_store, exported_text, question=question, keys=keys, **asked)
    return status_of_receipt(exported.receipt, is_empty=False)


def demo(given: Namespace) -> Status:
    from whence.cli.demo import run_demo

    with _output(given) as screen:
        run_demo(given, screen)
    return Status.DONE


def _kinds() -> tuple[str, ...]:
    from whence.store.inspection import Kind

    return tuple(Kind)


Command = tuple[str, Callable[[], options.Parser], Callable[[Namespace], Status]]

COMMANDS: dict[str, Command] = {
    "find": ("find messages by key, id, offset, queue or time", options.find_parser, find),
    "explain": ("the same, told step by step", options.explain_parser, explain),
    "inspect": ("print any file of a store in words", lambda: options.inspect_parser(_kinds()), inspect),
    "build": ("build the indexes of a log, on Spark", options.build_parser, build),
    "follow": ("keep the indexes up with a log that grows, on Spark", options.follow_parser, follow),
    "verify": ("hold a log and its indexes against each other, on Spark", options.verify_parser, verify),
    "repair": ("mend what verify finds", options.repair_parser, repair),
    "export": ("write messages to Parquet, JSON lines or CSV, on Spark", options.export_parser, export),
    "expire": ("let go of old log files, or move them to an archive", options.expire_parser, expire),
    "demo": ("show all this on a small store that comes with whence", options.demo_parser, demo),
}


# What they share


@contextmanager
def _keys_of_rows(given: Namespace, chosen: str) -> Iterator[Keys | None]:
    """The keys, if a row for each of them and each message is wanted.

    None if it is a question as any other; then the keys of a file are among those that were given.
    """
    named = [f"--{name}" for name in ("columns", "missing") if getattr(given, name) is not None]
    if chosen in ("arrow", "parquet"):
        named.append(f"--format {chosen}" if given.format else f"-o {given.output}")
    if named and given.rows == "message":
        raise UsageError(f"{named[0]} is for rows of keys; leave --rows message out")
    wants_rows = bool(named) or given.rows == "key"
    if given.keys_from is None:
        if wants_rows and given.keys is None:
            raise UsageError(f"{[*named, '--rows key'][0]} needs keys: --key K or --keys-from FILE")
        yield given.keys if wants_rows else None
        return
    from whence.lookup.question import KEYS_MAX

    with _key_lines(given) as lines:
        few = None if wants_rows else lines.all_of(KEYS_MAX)
        if few is None and given.rows == "message":
            raise UsageError(f"{given.keys_from} has more than {KEYS_MAX} keys; --rows key answers them")
        if few is not None:
            given.keys = few
        yield lines if few is None else None


@contextmanager
def _keys_of_file(given: Namespace) -> Iterator[Keys | None]:
    """The keys of a file, if they are too many for a question; else they are among those that were given."""
    if given.keys_from is None:
        yield None
        return
    from whence.lookup.question import KEYS_MAX

    with _key_lines(given) as lines:
        few = given.keys = lines.all_of(KEYS_MAX)
        yield lines if few is None else None


def _few_keys(given: Namespace) -> list[bytes]:
    """The keys that were given, those of a file among them."""
    from whence.lookup.question import KEYS_MAX

    with _key_lines(given) as lines:
        few = lines.all_of(KEYS_MAX)
    if few is None:
        raise UsageError(f"{given.keys_from} has more than {KEYS_MAX} keys, which find answers and explain does not")
    return few


@contextmanager
def _key_lines(given: Namespace) -> Iterator[KeyLines]:
    """The keys of a file, behind those that were given; there is one at least."""
    from whence.cli.many import open_keys
    from whence.lookup.asked_keys import KeyLines

    with open_keys(given.keys_from) as file:
        lines = KeyLines(file, given.keys or ())
        if not lines.has_some():
            raise UsageError(f"{given.keys_from}: has no key in it")
        yield lines


def _question(given: Namespace) -> dict[str, Any]:
    """The arguments of ``Store.find``."""
    question = {name: getattr(given, name) for name in QUESTION}
    if given.keys is None and all(value is None for value in question.values()):
        raise UsageError(
            "nothing is asked; give --key, --id, --offset, --field, --topic, --tag, --since or --until, "
            "for example: whence find STORE --key order-4711"
        )
    question |= {name: getattr(given, name) for name in SETTINGS}
    limit = LIMIT_DEFAULT if given.limit is None else given.limit
    return question | {"key": given.keys, "limit": None if given.all else limit}


def _format(given: Namespace) -> str:
    if given.json and given.format not in (None, "json"):
        raise UsageError(f"--json and --format {given.format} exclude each other")
    if given.json or given.format is not None:
        return "json" if given.json else given.format
    ending = Path(given.output or "").suffix[1:].lower()
    return ending if ending in given.formats else "table"


@contextmanager
def _output(given: Namespace) -> Iterator[Screen]:
    """Standard output, or the file of ``-o``. A reader that went away (``| head``) ends the output quietly."""
    path = getattr(given, "output", None)
    if path is not None:
        from whence.files.atomic import write_aside

        _keep_out_of_stores(path, given)
        with write_aside(Path(path)) as file:
            stream = TextIOWrapper(file, "utf-8", errors="backslashreplace", newline="\n", write_through=True)
            yield Screen(stream)
            stream.detach()
        return
    try:
        yield Screen.of(sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more when it ends, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _keep_out_of_stores(path: str, given: Namespace) -> None:
    """What belongs to a broker is never written to, nor the file that is being inspected."""
    target = os.path.realpath(path)
    for read in [*getattr(given, "stores", ()), *filter(None, [getattr(given, "file", None)])]:
        folder = os.path.realpath(read.removeprefix("file://"))
        if os.path.commonpath([target, folder]) == folder:
            raise UsageError(f"{path} lies in {read}, which is only read; name a file elsewhere")


def _keep_apart(given: Namespace) -> None:
    """A file gets one output alone, and the user's keys none. Terminals, pipes and ``/dev/null`` take any number."""
    options: dict[Path, str] = {}
    for name, option in FILES.items():
        path = getattr(given, name, None)
        if path is None or (option == "--keys-from" and path == "-"):
            continue
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            continue
        other = options.setdefault(target, option)
        if other != option:
            raise UsageError(f"{other} and {option} are one file, {path}; name another one")


def _say_written(given: Namespace, what: str) -> None:
    if given.output is not None and not given.quiet:
        complain(f"{what} written to {given.output}")


# The process


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit status. Without ``arguments`` it is that of the process."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    interrupts = Interrupts()
    if arguments is None:
        interrupts.watch()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    log: Logger | None = None
    status: int
    try:
        run, given = _parse(typed)
        given.interrupts = interrupts if arguments is None else None
        _keep_apart(given)
        if given.log_file is not None:
            _keep_out_of_stores(given.log_file, given)
            log = _open_log(given.log_file)
            log.info("whence %s started: %s", __version__, typed)
        status = run(given)
    except SystemExit as end:  # --help and --version
        return int(end.code or 0)
    except KeyboardInterrupt:
        status = interrupts.status
        interrupts.tell()
    except Exception as error:
        if interrupts.number:  # a library made another error of it
            status = interrupts.status
            interrupts.tell()
        else:
            status = next(status for kind, status in STATUS_OF_ERROR if isinstance(error, kind))
            _tell_error(error, status, debug="--debug" in typed)
        if log is not None:
            log.error("%s", error, exc_info=error)
    if log is not None:
        log.info("ended with status %d", status)
        log.handlers[0].close()
    interrupts.leave(status)
    return status


def _parse(typed: list[str]) -> tuple[Callable[[Namespace], Status], Namespace]:
    command = COMMANDS.get(typed[0]) if typed else None
    if command is not None:
        _, make_parser, run = command
        return run, make_parser().parse_args(typed[1:])
    parser = options.top_parser({name: summary for name, (summary, _, _) in COMMANDS.items()}, __version__)
    if not typed:
        parser.print_help(sys.stderr)
        raise UsageError("no command was given")
    if typed[0] in ("-h", "--help", "--version"):
        parser.parse_args(typed[:1])
    if typed[0].startswith("-"):
        raise UsageError("the command comes first, for example: whence find STORE --key order-4711")
    raise UsageError(f"{typed[0]!r} is no command; there are {', '.join(COMMANDS)}; see whence --help")


def _tell_error(error: Exception, status: int, *, debug: bool) -> None:
    if debug:
        import traceback

        traceback.print_exception(error)
    if status == Status.BUG:
        complain(f"a fault of whence itself: {type(error).__name__}: {error}; --debug shows where")
    elif isinstance(error, OSError):
        complain(f"{error.filename or 'reading or writing failed'}: {error.strerror or error}")
    else:
        complain(str(error))


def _open_log(path: str) -> Logger:
    import logging
    import time

    try:
        handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"--log-file {path}: {error.strerror}") from error
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(process)d %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    log = logging.Logger("whence", logging.INFO)
    log.addHandler(handler)
    return log
