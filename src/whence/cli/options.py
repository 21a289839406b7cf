"""The options of each command. Only the parser of the command that was typed is made: start-up is felt."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Never

from whence.errors import UsageError
from whence.lookup.question import KEYS_MAX, LIMIT_DEFAULT

if TYPE_CHECKING:
    from whence.pipeline.session import SparkSettings

INTEGER_MAX = 2**63 - 1
ROWS_DEFAULT = 20
HELP_WIDTH = 100


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help of a fixed width; to ask the terminal for its own would load a module that nothing else needs."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=HELP_WIDTH)


class Parser(argparse.ArgumentParser):
    """Says what is wrong as every other error is said: in one line."""

    def __init__(self, command: str, description: str, examples: str) -> None:
        super().__init__(
            prog=f"whence {command}".strip(),
            description=description,
            epilog=f"examples:\n{examples}",
            formatter_class=_Help,
            allow_abbrev=False,
        )

    def error(self, message: str) -> Never:
        raise UsageError(f"{message}; {self.prog} --help shows what can be asked")


def integer(text: str) -> int:
    """A whole number that a store can hold."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no whole number")
    if len(digits) > 19 or int(digits) > INTEGER_MAX:
        raise argparse.ArgumentTypeError(f"{text[:80]} does not fit into 64 bits")
    return int(text)


def hexadecimal(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not hexadecimal; give two digits for each byte") from None


def setting(text: str) -> tuple[str, str]:
    """A setting of Spark's, as ``spark.executor.memory=4g``."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no setting; give it as NAME=VALUE")
    return name, value


def field_sql(text: str) -> tuple[str, str]:
    """A field, as ``order=get_json_object(cast(body as string), '$.order_id')``."""
    name, equals, sql = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is no field; give it as NAME=SQL")
    return name, sql


def top_parser(commands: dict[str, str], version: str) -> argparse.ArgumentParser:
    """The parser for a line without a command: ``whence --help``."""
    parser = Parser(
        "",
        "Where is this message? Exact lookups in RocketMQ's own files, with no broker and no JVM.",
        "  whence demo\n  whence find /data/store --key order-4711\n  whence find --help",
    )
    parser.usage = "whence COMMAND ..."
    listed = parser.add_argument_group("commands")
    for name, summary in commands.items():
        listed.add_argument(name, help=summary, nargs="?")
    parser.add_argument("--version", action="version", version=f"whence {version}")
    return parser


def find_parser() -> Parser:
    parser = Parser(
        "find",
        "Find messages in one or several RocketMQ stores. Nothing is written to them.",
        "  whence find /data/store --key order-4711\n"
        "  whence find /data/store --topic orders --since 15m --limit 10 --body\n"
        "  whence find /data/a /data/b --id 7F000001ACC018B4AAC2116AF6500000 --json\n"
        "  whence find /data/store --topic orders --keys-from keys.txt -o found.parquet",
    )
    parser.add_argument("stores", metavar="STORE", nargs="+", help="a folder that has commitlog/ in it")
    _add_question(parser)
    _add_order(parser)
    _add_store(parser).add_argument("--out", metavar="DIR", help="where the sidecar is, if not in STORE.whence")
    _add_output(parser, ("table", "json", "jsonl", "csv", "arrow", "parquet"))
    many = parser.add_argument_group("very many keys")
    many.add_argument(
        "--rows",
        choices=("message", "key"),
        help="a row for each message that has one of the keys, or for each key and message that has it "
        f"(default: message up to {KEYS_MAX} lines of keys, key above)",
    )
    many.add_argument(
        "--columns", metavar="A,B", help="with rows of keys: what they tell of a message, as topic,physical_offset"
    )
    many.add_argument("--missing", metavar="FILE", help="with rows of keys: write keys that no message has to FILE")
    add_spark(parser)
    _add_common(parser)
    return parser


def explain_parser() -> Parser:
    parser = Parser(
        "explain",
        "Find messages and tell each step: files, hash, slot, chain, candidates, rejects.",
        "  whence explain /data/store --key order-4711 --topic orders\n"
        "  whence explain /data/store --id 7F000001ACC018B4AAC2116AF6500000",
    )
    parser.add_argument("stores", metavar="STORE", nargs=1, help="a folder that has commitlog/ in it")
    _add_question(parser)
    _add_order(parser)
    _add_store(parser).add_argument("--out", metavar="DIR", help="where the sidecar is, if not in STORE.whence")
    _add_output(parser, ("table", "json"))
    _add_common(parser)
    return parser


def inspect_parser(kinds: tuple[str, ...]) -> Parser:
    parser = Parser(
        "inspect",
        "Print what a file of a RocketMQ store says, in words. Its kind is told by its path, else by its bytes.",
        "  whence inspect /data/store/index/20261116004238024\n"
        "  whence inspect /data/store/commitlog/00000000000000000000 --from 4096 --limit 5\n"
        "  whence inspect copy-of-a-file --kind consumequeue",
    )
    parser.add_argument("file", metavar="FILE", help="one file of a store")
    parser.add_argument(
        "--kind",
        metavar="KIND",
        choices=kinds,
        help=f"what the file is, if that is guessed wrong: {', '.join(kinds)}",
    )
    parser.add_argument(
        "--from",
        dest="start",
        metavar="N",
        type=integer,
        help="row to begin with; in commitlog and consumequeue_ext files a byte: the row there or next",
    )
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument(
        "--limit", metavar="N", type=integer, default=ROWS_DEFAULT, help=f"rows to print (default {ROWS_DEFAULT})"
    )
    rows.add_argument("--all", action="store_true", help="print all rows")
    _add_shape(parser.add_argument_group("an index file whose counts cannot be inferred"))
    _add_output(parser, ())
    _add_common(parser)
    return parser


def build_parser() -> Parser:
    parser = Parser(
        "build",
        "Build what is missing of the indexes of a store, on Spark: by key, by queue, by time. They go to a folder "
        "beside the store, STORE.whence, where find looks first; the store itself is only read. Run it again when "
        "the log has grown: it goes on where it ended.",
        "  whence build /data/store\n"
        "  whence build /data/store --out /fast/disk/store.whence --jobs 64\n"
        "  whence build /data/store --in-place --rebuild\n"
        "  whence build /data/store --field order=\"get_json_object(cast(body as string), '$.order_id')\"\n"
        "  whence build /mnt/store --master spark://host:7077 --conf spark.executor.memory=2g",
    )
    parser.add_argument("stores", metavar="STORE", nargs=1, help="a folder that has commitlog/ in it")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--out", metavar="DIR", help="put them there, instead of STORE.whence")
    where.add_argument(
        "--in-place",
        action="store_true",
        help="put index/ and consumequeue/ into the store itself, in place of what is there; no broker may run",
    )
    parser.add_argument("--rebuild", action="store_true", help="build all anew, not only what is missing")
    parser.add_argument(
        "--field",
        dest="fields",
        metavar="NAME=SQL",
        action="append",
        type=field_sql,
        default=[],
        help="index what this expression of Spark's SQL gives for each message, for find --field NAME=VALUE; "
        "repeatable; fields that are there stay, and NAME= drops one",
    )
    parser.add_argument(
        "--jobs", metavar="N", type=integer, help="into how many tasks to cut the log (default: as suits the cores)"
    )
    _add_store(parser)
    add_spark(parser)
    _add_common(parser)
    return parser


def follow_parser() -> Parser:
    parser = Parser(
        "follow",
        "Keep the indexes of a store up with its log while a broker writes to it, on Spark. They grow in the folder "
        "beside the store, STORE.whence, and what was appended is found through them within a second; the store "
        "itself is only read. Ctrl-C or SIGTERM ends it. Whatever is killed: it goes on where it was, and so does "
        "whence build.",
        "  whence follow /data/store\n"
        "  whence follow /data/store --once\n"
        "  whence follow /data/store --metrics-port 9105 --json >> follow.jsonl",
    )
    parser.add_argument("stores", metavar="STORE", nargs=1, help="a folder that has commitlog/ in it")
    parser.add_argument("--once", action="store_true", help="handle what is there and end")
    parser.add_argument("--out", metavar="DIR", help="let them grow there, instead of in STORE.whence")
    parser.add_argument(
        "--metrics-port",
        metavar="N",
        type=integer,
        help="answer Prometheus at http://127.0.0.1:N/metrics; 0 takes any port that is free and tells it",
    )
    _add_store(parser)
    add_spark(parser)
    _add_common(parser)
    return parser


def verify_parser() -> Parser:
    parser = Parser(
        "verify",
        "Hold a store's log, index files, queues and time blocks against each other, on Spark. Every message is "
        "looked for under each of its keys and in its queue, and every byte of the indexes is looked at. Nothing is "
        "changed.",
        "  whence verify /data/store\n"
        "  whence verify /data/store --json | jq .healthy\n"
        "  whence verify /mnt/store --out /mnt/indexes --master spark://host:7077",
    )
    parser.add_argument("stores", metavar="STORE", nargs=1, help="a folder that has commitlog/ in it")
    parser.add_argument("--out", metavar="DIR", help="where whence build put the indexes, if not into STORE.whence")
    _add_jobs(parser)
    return parser


def repair_parser() -> Parser:
    parser = Parser(
        "repair",
        "Mend what verify finds: damaged files are made anew from the log, and put into the place of the old ones. "
        "A store that whence did not make is only read: what is right goes to the folder beside it, STORE.whence, "
        "where find looks first.",
        "  whence repair /data/store --dry-run\n"
        "  whence repair /data/store\n"
        "  whence repair /data/store --in-place --cut-tail",
    )
    parser.add_argument("stores", metavar="STORE", nargs=1, help="a folder that has commitlog/ in it")
    parser.add_argument("--dry-run", action="store_true", help="tell what is damaged, and change nothing")
    parser.add_argument(
        "--in-place",
        action="store_true",
        help="mend the store itself, also if whence did not make it; no broker may run",
    )
    parser.add_argument(
        "--cut-tail",
        action="store_true",
        help="cut off what a crash left behind the log's last whole record; a copy of it is kept",
    )
    parser.add_argument("--out", metavar="DIR", help="where whence build put the indexes, if not into STORE.whence")
    _add_jobs(parser)
    return parser


def _add_jobs(parser: Parser) -> None:
    """What verify, repair and export share."""
    parser.add_argument(
        "--jobs", metavar="N", type=integer, help="into how many tasks to cut the log (default: as suits the cores)"
    )
    _add_store(parser)
    add_spark(parser)
    _add_common(parser)


def expire_parser() -> Parser:
    parser = Parser(
        "expire",
        "Let go of a store's old log files, and of the queue and index files that lead only into them; or move them "
        "to an archive, which is a store that can be asked. A log's last file always stays.",
        "  whence expire /data/store --older-than 72h --in-place --dry-run\n"
        "  whence expire /data/store --older-than 30d --archive /archive/store --in-place\n"
        "  whence expire /data/copy --older-than 3d --by record --in-place",
    )
    parser.add_argument("stores", metavar="STORE", nargs=1, help="a folder that has commitlog/ in it")
    parser.add_argument(
        "--older-than", metavar="AGE", required=True, help="files that were finished before that: 15m, 72h, 3d"
    )
    parser.add_argument(
        "--by",
        choices=("file", "record"),
        default="file",
        help="whose age counts: that of the file (default), or of the record that is stored behind it; "
        "a copy of a store has new files and old records",
    )
    parser.add_argument("--archive", metavar="DIR", help="move it all to DIR, a new archive or one to go on with")
    parser.add_argument("--dry-run", action="store_true", help="tell what would go, and change nothing")
    parser.add_argument("--in-place", action="store_true", help="allow it for a store that whence did not make")
    _add_common(parser)
    return parser


def export_parser() -> Parser:
    parser = Parser(
        "export",
        "Write the messages of a store to files that other programs read, on Spark: all of them, or those that "
        "answer a question. The folder is there whole or not at all; _export.json in it tells what was searched, and "
        "whether that was complete.",
        "  whence export /data/store -o /data/messages\n"
        "  whence export /data/store -o orders --topic orders --since 2026-01-01 --format jsonl\n"
        "  whence export /data/store -o large --topic orders --where \"size > 65536 and tags <> 'test'\"",
    )
    parser.add_argument("stores", metavar="STORE", nargs=1, help="a folder that has commitlog/ in it")
    parser.add_argument("-o", dest="target", metavar="DIR", required=True, help="the folder to make")
    parser.add_argument(
        "--format",
        choices=("parquet", "jsonl", "csv", "bulk"),
        default="parquet",
        help="parquet (default, in folders by day and topic), jsonl (JSON lines), csv, or bulk (JSON lines for the "
        "bulk interface of a search engine)",
    )
    parser.add_argument("--rebuild", action="store_true", help="put it in the place of another export in DIR")
    parser.add_argument("--out", metavar="DIR", help="where the sidecar is, if not in STORE.whence")
    _add_question(parser)
    how = parser.add_argument_group("which of them besides")
    how.add_argument("--where", metavar="SQL", help="those for which this expression of Spark SQL is true")
    _add_scan(how)
    _add_jobs(parser)
    return parser


def demo_parser() -> Parser:
    parser = Parser(
        "demo",
        "Open the sample store that comes with whence, find messages in it, and explain how.",
        "  whence demo\n  whence demo --dir sample",
    )
    parser.add_argument("--dir", metavar="DIR", help="unpack the store there, and keep it")
    _add_common(parser)
    return parser


def _add_question(parser: Parser) -> None:
    asked = parser.add_argument_group("the question, one or more of")
    asked.add_argument(
        "--key",
        dest="keys",
        metavar="K",
        action="append",
        help='messages with this key; repeat it for any of several (--key=-x for one that begins with "-")',
    )
    asked.add_argument(
        "--key-hex",
        dest="keys",
        metavar="HEX",
        action="append",
        type=hexadecimal,
        help="the same, as bytes in hex",
    )
    asked.add_argument("--keys-from", metavar="FILE", help="the same, one on each line of FILE; - for standard input")
    asked.add_argument("--topic", metavar="T", help="messages of this topic")
    asked.add_argument("--id", metavar="ID", help="a unique id, an offset message id, or a key: whatever it is")
    asked.add_argument("--offset", metavar="N", type=integer, help="the message at this physical offset")
    asked.add_argument("--queue", metavar="Q", type=integer, help="messages of this queue of the topic")
    asked.add_argument("--queue-offset", metavar="N", type=integer, help="the message at this place of the queue")
    asked.add_argument(
        "--since", metavar="TIME", help="stored then or later: ISO 8601, epoch milliseconds, or an age as 15m"
    )
    asked.add_argument("--until", metavar="TIME", help="stored then or earlier; both ends are included")
    asked.add_argument("--tag", metavar="T", help="messages with this tag")
    asked.add_argument(
        "--field",
        metavar="NAME=VALUE",
        action="append",
        help="messages whose field, which whence build --field has indexed, has this value; repeat it for several",
    )


def _add_order(parser: Parser) -> None:
    how = parser.add_argument_group("how much, and in which order")
    limit = how.add_mutually_exclusive_group()
    limit.add_argument(
        "--limit",
        metavar="N",
        type=integer,
        help=f"give so many (default {LIMIT_DEFAULT}; rows of keys: for each key, and all by default)",
    )
    limit.add_argument("--all", action="store_true", help="give all")
    how.add_argument("--cursor", metavar="C", help="go on where the answer with this cursor ended")
    how.add_argument("--oldest-first", action="store_true", help="by log position upwards (default: newest first)")
    _add_scan(how)


def _add_scan(how: argparse._ArgumentGroup) -> None:
    how.add_argument("--system-topics", action="store_true", help="also messages that the broker keeps for itself")
    scan = how.add_mutually_exclusive_group()
    scan.add_argument("--scan", action="store_true", help="trust no index, scan the log")
    scan.add_argument("--no-scan", action="store_true", help="indexes only; what they do not cover is left out")


def _add_store(parser: Parser) -> argparse._ArgumentGroup:
    store = parser.add_argument_group("the store, where its files do not tell")
    _add_shape(store)
    store.add_argument("--dialect", metavar="D", help="the version that wrote the index: 4.9, 5.3 or 5.5")
    return store


def _add_shape(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--slots", metavar="N", type=integer, help="the broker's maxHashSlotNum; with --items")
    group.add_argument("--items", metavar="N", type=integer, help="the broker's maxIndexNum; with --slots")


def _add_output(parser: Parser, formats: tuple[str, ...]) -> None:
    output = parser.add_argument_group("output")
    if formats:
        ending = f".{formats[-1]}"
        output.add_argument("--format", choices=formats, help=f"default table, or what FILE ends in, as {ending}")
        parser.set_defaults(formats=formats)
        output.add_argument("--body", action="store_true", help="with the bodies")
    output.add_argument("-o", dest="output", metavar="FILE", help="write to FILE, which is there whole or not at all")


def add_spark(parser: Parser) -> None:
    """What every command that runs on Spark takes; :func:`spark_settings` reads it."""
    spark = parser.add_argument_group("Spark")
    spark.add_argument(
        "--master",
        metavar="URL",
        help="where to run: local[N], spark://host:port, yarn, k8s://... (default: all cores)",
    )
    spark.add_argument(
        "--conf", metavar="K=V", action="append", type=setting, default=[], help="a setting of Spark's; repeatable"
    )


def spark_settings(given: argparse.Namespace) -> SparkSettings:
    from whence.pipeline.session import SparkSettings

    return SparkSettings(given.master, dict(given.conf))


def _add_common(parser: Parser) -> None:
    common = parser.add_argument_group("of every command")
    common.add_argument("--json", action="store_true", help="one JSON document on standard output")
    common.add_argument("--quiet", action="store_true", help="no progress, and of the receipt only what is wrong")
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    common.add_argument("--log-file", metavar="F", help="append a line for each start, end and error to F")
