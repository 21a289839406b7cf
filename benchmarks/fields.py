"""``whence build --field`` with a JSON path over 1 GiB; beside Spark evaluating the expression alone over the source.

Index, queues, time blocks and the field are published and flushed. The peer is told which column it needs, makes no
other, and counts the values; beside it one that is not told. The session is open before, and Java has compiled what
it will: the warm-up rounds are for that. A lookup by the field, which needs no Spark, is measured beside one by key.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import whence
from benchmarks.data import JSON_FIELD, LOG_SIZE, cache_folder, json_store
from benchmarks.harness import Comparison, Options, Peer, Result, Target, measure, timed
from whence.door import build_store
from whence.pipeline.session import open_session

SQL = f"get_json_object(cast(body as string), '$.{JSON_FIELD}')"
LOOKUPS = 1000


def results(options: Options) -> Iterator[Result]:
    made = json_store(LOG_SIZE >> 6 if options.is_small else LOG_SIZE)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fields-", dir=cache_folder())))
        store = folder / "store"
        store.mkdir()
        (store / "commitlog").symlink_to(made.path / "commitlog")
        here = os.sched_getaffinity(0)
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        stack.callback(os.sched_setaffinity, 0, here)
        spark = stack.enter_context(open_session(moves_rows=True))
        whence.spark.register(spark)
        few = replace(options, rounds=min(options.rounds, 5))
        peers = [
            Peer("whence", _build(store)),
            Peer("Spark, from all columns", _evaluate(spark, store, None)),
            Peer("Spark, from the body", _evaluate(spark, store, "body")),
        ]
        title = "build --field of a JSON path over 1 GiB, with all indexes"
        yield measure(Comparison(title, peers, Target(1.5, 1.2, "times as long")), few)
        with whence.open(store) as opened:
            wanted = [made.key(number * 7919 % made.message_count) for number in range(LOOKUPS)]
            by_field = _look_up(opened, [{"field": {"order": text}} for text in wanted])
            by_key = _look_up(opened, [{"key": text} for text in wanted])
            peers = [Peer("by field", by_field), Peer("by key", by_key)]
            yield measure(Comparison("find of one value, in every topic", peers, None, LOOKUPS, "lookup"), options)


def _build(store: Path) -> Callable[[int], Any]:
    def emptied(_: int) -> Path:
        shutil.rmtree(store.with_name("store.whence"), ignore_errors=True)
        os.sync()
        return store

    def build(store: Path) -> int:
        return build_store(store, fields={"order": SQL}).fields[0].items

    return timed(emptied, build)


def _evaluate(spark: Any, store: Path, columns: str | None) -> Callable[[int], Any]:
    from pyspark.sql import functions

    def read(_: int) -> Any:
        source = spark.read.format("whence")
        return (source if columns is None else source.option("columns", columns)).load(str(store))

    def evaluate(messages: Any) -> int:
        values = messages.select(functions.expr(SQL).alias("value"))
        return int(values.agg(functions.count("value")).collect()[0][0])

    return timed(read, evaluate)


def _look_up(store: whence.Store, questions: list[dict[str, Any]]) -> Callable[[int], Any]:
    def ask(_: None) -> int:
        return sum(len(store.find(**question)) for question in questions)

    return timed(lambda _: None, ask)
