"""What the data source has to give: every row of a store by a plain decode, and SQL's logic over it, spelled out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import datasource as spark_filters

from tests.pipeline.test_build import OneByOne, build
from tests.reference import PREPARED, ROLLBACK, Record, encode_properties
from tests.store_maker import MadeStore, T, log_bytes, make_store, message, place
from whence.errors import CorruptError
from whence.formats.rocketmq.message import Message
from whence.pipeline.source_filters import Condition, read_filters
from whence.pipeline.source_options import SourceOptions, parse_options
from whence.pipeline.source_plan import Part, plan_read, wanted_of
from whence.pipeline.source_read import SourceRead
from whence.store.commit_log import CommitLog
from whence.store.index_file import Shape
from whence.store.message_columns import COLUMNS, TYPES
from whence.store.message_store import Dialect
from whence.store.opening import open_folder

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EDGES = [EPOCH, datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]
FILE_SIZE = 262_144  # four blocks of time

Row = dict[str, Any]


# -- a store of many sorts -----------------------------------------------------------------------------------


def odd_messages(count: int, seed: int = 1) -> list[Record]:
    """Messages of several topics; keys that recur, some in several topics; a clock that is put back now and then."""
    random = Random(seed)
    made = []
    clock = 0
    for number in range(count):
        clock += random.randrange(-2000, 3000) if number % 50 == 0 else random.randrange(20)
        keys = " ".join(random.choices([f"k{random.randrange(60)}", f"only-{number}", "ключ", "a"], k=number % 4))
        record = message(
            topic=random.choice(["orders", "orders", "payments", "тема", "RMQ_SYS_TRANS_HALF_TOPIC"]),
            queue=random.randrange(3),
            keys=keys,
            tags=random.choice(["", "paid", "PAID", "open", "p%id"]),
            unique_id=random.choice(["", f"U{number:04d}", "u-shared"]),
            at=clock,
            body=bytes([number % 256]) * random.choice([0, 300, 2000]),
            sys_flag=random.choice([0, 0, 0, 0, PREPARED, ROLLBACK]),
        )
        if number % 17 == 0:
            blob = encode_properties({"KEYS": "k1", "TAGS": "t"}) + b"UNIQ_KEY\x01\xff\xed\xa0\x80\x02"
            record = Record(**{**vars_of(record), "properties_data": blob})
        made.append(record)
    return made


def vars_of(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in Record.__dataclass_fields__}


def make_odd_store(folder: Path, count: int = 700, indexed: int = 600) -> MadeStore:
    """A store with a sidecar that covers its first messages."""
    records = odd_messages(count)
    made = make_store(folder, records[:indexed], slots=50, items=300, file_size=FILE_SIZE, indexed=0)
    build_sidecar(folder)
    placed = place(records, file_size=FILE_SIZE)
    for name, data in log_bytes(placed, file_size=FILE_SIZE).items():
        (folder / "commitlog" / name).write_bytes(data)
    return MadeStore(folder, placed, made.index)


def build_sidecar(folder: Path, *, items: int = 300) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(os, "fdatasync", lambda descriptor: None)
        sidecar = folder.with_name(f"{folder.name}.whence")
        settings = {"shape": Shape(50, items), "dialect": Dialect.V5_5, "queue_file_size": 2000}
        build(folder, sidecar, OneByOne(), **settings)
    return sidecar


# -- what the source gives -----------------------------------------------------------------------------------


def options_of(path: Path, **options: str) -> SourceOptions:
    return parse_options({"path": str(path)} | options)


def plan(path: Path, filters: Iterable[Any] = (), **options: str) -> tuple[list[Part], SourceRead]:
    """The parts of a query, and what reads them."""
    given = options_of(path, **options)
    conditions, left = read_filters(filters, given.columns)
    assert not left, left
    wanted = wanted_of(given, conditions)
    with open_folder(given.path, given.out) as store:
        return plan_read(store, given, wanted), SourceRead(given, given.columns, wanted)


def read(path: Path, filters: Iterable[Any] = (), **options: str) -> list[Row]:
    parts, reader = plan(path, filters, **options)
    return rows_of(reader, parts)


def rows_of(reader: SourceRead, parts: Iterable[Part]) -> list[Row]:
    rows: list[Row] = []
    for part in parts:
        for batch in reader.read(part):
            assert batch.num_rows
            batch.validate(full=True)
            rows += batch.to_pylist()
    return rows


# -- what it has to give -------------------------------------------------------------------------------------


def values_of(each: Message) -> Row:
    """The columns of a message."""
    values: Row = {}
    for name in COLUMNS:
        try:
            values[name] = getattr(each, name)
        except CorruptError:
            assert name.endswith("_time")  # no calendar has it
            values[name] = None
    if each.is_rollback:
        values["unique_id"] = None  # no index has it
    return values | {"keys": list(each.keys), "properties": [*each.properties.items()]}


def all_rows(path: Path, *, by_key: bool = False) -> list[Row]:
    """Every row of a store, by a decode of each message."""
    log = CommitLog(path / "commitlog")
    try:
        messages = list(log.messages(log.begin_offset, log.end_offset()))
    finally:
        log.close()
    if by_key:
        return [{"key": key} | values_of(each) for each in messages for key in each.keys]
    return [values_of(each) for each in messages]


def truth(each: Any, row: Row) -> bool | None:
    """SQL's answer: true, false or unknown."""
    if isinstance(each, spark_filters.Not):
        inner = truth(each.child, row)
        return None if inner is None else not inner
    value = row[each.attribute[0]]
    if isinstance(each, spark_filters.IsNull):
        return value is None
    if isinstance(each, spark_filters.IsNotNull):
        return value is not None
    if isinstance(each, spark_filters.EqualNullSafe):
        return value == each.value
    if isinstance(each, spark_filters.In):
        if value is None:
            return None
        if value in each.value:
            return True
        return None if None in each.value else False
    if value is None or each.value is None:
        return None
    return _COMPARED[type(each)](_ordered(value), _ordered(each.value))


def _ordered(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


_COMPARED: dict[type, Callable[[Any, Any], bool]] = {
    spark_filters.EqualTo: lambda a, b: a == b,
    spark_filters.GreaterThan: lambda a, b: a > b,
    spark_filters.GreaterThanOrEqual: lambda a, b: a >= b,
    spark_filters.LessThan: lambda a, b: a < b,
    spark_filters.LessThanOrEqual: lambda a, b: a <= b,
    spark_filters.StringStartsWith: lambda a, b: a.startswith(b),
    spark_filters.StringEndsWith: lambda a, b: a.endswith(b),
    spark_filters.StringContains: lambda a, b: b in a,
}


def meet(rows: Iterable[Row], filters: Iterable[Any]) -> list[Row]:
    return [row for row in rows if all(truth(each, row) is True for each in filters)]


# -- filters -------------------------------------------------------------------------------------------------


def some_filters(random: Random, rows: list[Row], names: Iterable[str]) -> list[Any]:
    """One to three filters, mostly of values that occur, or nearly."""
    columns = [name for name in names if TYPES[name] in ("int", "bigint", "string", "timestamp")]
    weighty = ["key", "topic", "unique_id", "offset_id", "physical_offset", "store_timestamp_ms", "store_time"]
    chosen = [name for name in weighty if name in columns]
    return [
        _filter(random, rows, random.choice(chosen if random.random() < 0.7 else columns))
        for _ in range(random.choice([1, 1, 2, 3]))
    ]


def _filter(random: Random, rows: list[Row], name: str) -> Any:
    attribute = (name,)
    is_text = TYPES[name] == "string"
    kinds = ["=", "=", "in", "in", "<=>", "<", "<=", ">", ">=", "null", "not null"]
    kind = random.choice(kinds + (["starts", "ends", "contains"] if is_text else []))
    value = next(_values(random, rows, name))
    made: Any
    match kind:
        case "in":
            values = _values(random, rows, name)
            some = [next(values) for _ in range(random.choice([0, 1, 2, 5, 20]))]
            made = spark_filters.In(attribute, tuple(some + ([None] if random.random() < 0.1 else [])))
        case "null":
            made = spark_filters.IsNull(attribute)
        case "not null":
            made = spark_filters.IsNotNull(attribute)
        case "starts" | "ends" | "contains":
            cut = random.randrange(len(value) + 1)
            kinds_of = {
                "starts": (spark_filters.StringStartsWith, value[:cut]),
                "ends": (spark_filters.StringEndsWith, value[cut:]),
                "contains": (spark_filters.StringContains, value[cut : cut + 2]),
            }
            made = kinds_of[kind][0](attribute, kinds_of[kind][1])
        case _:
            compared = {
                "=": spark_filters.EqualTo,
                "<=>": spark_filters.EqualNullSafe,
                "<": spark_filters.LessThan,
                "<=": spark_filters.LessThanOrEqual,
                ">": spark_filters.GreaterThan,
                ">=": spark_filters.GreaterThanOrEqual,
            }[kind]
            made = compared(attribute, value)
    return spark_filters.Not(made) if random.random() < 0.15 else made


def _values(random: Random, rows: list[Row], name: str) -> Iterator[Any]:
    """Values of a column; one in four is another."""
    while True:
        value = random.choice(rows)[name]
        if isinstance(value, str) and "\ufffd" in value:
            continue  # Spark writes bytes that are no UTF-8 like this, so it has to compare them itself
        if value is None:
            value = random.choice(["", "nosuch", "PAID", "u-shared"]) if TYPES[name] == "string" else 0
        if random.random() < 0.25:
            if isinstance(value, str):
                value = random.choice([value.lower(), value.upper(), value + "x", "", "nosuch"])
            elif isinstance(value, datetime):
                value += timedelta(microseconds=random.choice([-1000, -1, 1, 999, 1000]))
                value = random.choice([value, value, *EDGES])
            else:
                limit = 2**31 - 1 if TYPES[name] == "int" else 2**63 - 1
                value = random.choice([min(value + 1, limit), value - 1, 0, -1, limit, -limit - 1])
        yield value


__all__ = ["Condition", "T", "all_rows", "build_sidecar", "make_odd_store", "meet", "plan", "read", "some_filters"]
