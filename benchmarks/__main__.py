"""``python -m benchmarks [NAME ...]``: measure claims, print a table, and what it was measured on."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.harness import Options, Result, as_json, table
from benchmarks.java_peer import ROCKETMQ
from benchmarks.machine import machine, versions

NAMES = {
    "scan": "scan of 1 GiB of CommitLog, beside RocketMQ's",
    "index_lookup": "lookups in a full IndexFile, beside RocketMQ's",
    "index_build": "a full IndexFile from its keys, beside RocketMQ's",
    "index_check": "a full IndexFile held against its items, beside building it",
    "rebuild": "index and queues from 1 GiB of CommitLog, beside RocketMQ's",
    "append": "messages appended to a CommitLog, beside RocketMQ's",
    "reopen": "a store of 4 GiB whose writer was killed, beside RocketMQ's",
    "build": "whence build of 4 GiB on all cores, beside RocketMQ's on one; and of 1 to 8 GiB",
    "source": "a key and a count of 4 GiB as a DataFrame, beside a scan",
    "export": "whence export of 1 GiB on all cores, beside Spark through the data source",
    "fields": "whence build --field of 1 GiB, beside Spark evaluating the expression alone",
    "follow": "whence follow: how soon a message is found, catching up 4 GiB, and what it costs at rest",
    "session": "a Spark session for a job, beside one as Spark opens it",
    "planner": "the plan of a build of a petabyte",
    "find": "a whole store.find of one key",
    "find_many": "a million keys at once in 4 GiB, beside LMDB gets in a loop",
    "cli": 'the command "whence find", beside "import numpy"',
    "map_pages": "the pages of 1 GiB of log, mapped",
    "threshold": "from which size on a scan is worth loading the compiled kernel",
}


IN_A_SESSION = {"build", "source", "export", "fields", "follow"}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog="names: " + "; ".join(f"{name}: {what}" for name, what in NAMES.items()),
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; all if none is named")
    parser.add_argument("--only", metavar="TEXT", default="", help="only comparisons with TEXT in their first column")
    parser.add_argument("--rounds", type=int, default=Options.rounds, help="rounds that count (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=Options.warm_up, help="rounds before them (%(default)s)")
    parser.add_argument("--core", type=int, help="the core to run on; the last one if none is named")
    parser.add_argument(
        "--fetch",
        type=int,
        default=0,
        metavar="MIB",
        help="touch so much memory before each turn: what is free a virtual machine may have given back to its host",
    )
    parser.add_argument("--small", action="store_true", help="little data: a rehearsal, no measurement")
    parser.add_argument("--no-java", action="store_true", help="without Apache's classes")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where the data sets are, instead of ~/.cache")
    parser.add_argument("--clean-data", action="store_true", help="remove the data sets, before anything else")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="every sample, as JSON")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"no benchmark is called {' or '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if arguments.data:
        data.keep_in(arguments.data)
    if arguments.clean_data:
        data.clean()
        if not arguments.names:
            return

    measured_on = machine()  # before the run, which is a load by itself
    options = Options(
        rounds=arguments.rounds,
        warm_up=arguments.warm_up,
        is_small=arguments.small,
        with_java=not arguments.no_java,
        only=arguments.only,
        fetch_mib=arguments.fetch,
    )
    names = arguments.names or list(NAMES)
    results: list[Result] = []
    with session_for_all(names, options):
        core = pin(arguments.core)
        for name in names:
            measured = import_module(f"benchmarks.{name}").results(options)
            results += [result for result in measured if result.samples]
    about = {
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "rounds": f"{options.rounds} after {options.warm_up} to warm up, peers in turn, {core}, warm page cache",
        **measured_on,
        "versions": ", ".join(f"{name} {number}" for name, number in (versions() | {"RocketMQ": ROCKETMQ}).items()),
    }
    if options.is_small:
        about["note"] = "a rehearsal on little data: the numbers mean nothing"
    print(table(results))
    print()
    for word, what in about.items():
        print(f"{word}: {what}")
    if arguments.output:
        arguments.output.write_text(
            json.dumps(about | {"results": [as_json(result) for result in results]}, indent=1)
        )


def session_for_all(names: list[str], options: Options) -> AbstractContextManager[Any]:
    """The session of Spark that all share in a rehearsal. Who measures opens its own, with its own settings."""
    if not options.is_small or IN_A_SESSION.isdisjoint(names):
        return nullcontext()
    from whence.pipeline.session import open_session

    return open_session()


def pin(core: int | None) -> str:
    """Keep this process, and the peers that it starts, on one core, where the system lets us."""
    if not hasattr(os, "sched_setaffinity"):
        return "any core"
    core = max(os.sched_getaffinity(0)) if core is None else core
    os.sched_setaffinity(0, {core})
    return f"core {core}"


if __name__ == "__main__":
    main()
