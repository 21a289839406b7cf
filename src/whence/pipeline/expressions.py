"""Expressions of Spark SQL that somebody gives, over the columns of a message: checked before they are run.

    SQL -> tree of Spark's parser     every node is known, every function is on the list below, every name is a column
        -> analyzed                   its type, the columns it reads, no clock, nothing of somebody's own

An expression is evaluated for each message by itself, and has the same value whenever and wherever that is done. It
reads what is in the message and nothing else. One that a user types runs once; one in a sidecar runs again and again,
for whoever builds or verifies, and may be anybody's. So what is not known is refused, and a function that a later
Spark adds reaches nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from whence.errors import UsageError
from whence.pipeline.reasons import reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZE_MAX = 65_536  # characters of an expression
SHOWN_MAX = 200  # of them, in an error

SUBSTITUTE = "spark.sql.variable.substitute"
"""Whether Spark puts variables of the environment, of Java and of its settings into SQL (``${env:HOME}``).

It does so before it parses: the tree that is checked here would show a harmless text.
"""
PACKAGE = "org.apache.spark.sql.catalyst.expressions."
"""Where Spark's own expressions are; what is elsewhere is somebody's own."""
SOMEBODYS = frozenset({"ScalaUDF", "PythonUDF", "PythonUDAF"})
"""And what is there for those of others: one may bear the name of a function that is known."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


NODES = _names(
    """
    Add Alias And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast Concat CreateNamedStruct Divide
    EqualNullSafe EqualTo GreaterThan GreaterThanOrEqual ILike In IntegralDivide IsNotNull IsNull LambdaFunction
    LessThan LessThanOrEqual Like LikeAll LikeAny Literal Multiply Not NotLikeAll NotLikeAny Or Overlay RLike
    Remainder SemiStructuredExtract ShiftLeft ShiftRight ShiftRightUnsigned StringLocate StringTrim StringTrimBoth
    StringTrimLeft StringTrimRight Substring Subtract TimestampAdd TimestampDiff UnaryMinus UnaryPositive
    UnresolvedAttribute UnresolvedExtractValue UnresolvedFunction UnresolvedNamedLambdaVariable
    """
)
"""What Spark's parser may make of an expression."""

FUNCTIONS = _names(
    """
    array array_append array_compact array_contains array_distinct array_except array_insert array_intersect
    array_join array_max array_min array_position array_prepend array_remove array_repeat array_size array_union
    arrays_overlap arrays_zip flatten get sequence slice sort_array bit_count bit_get getbit shiftleft shiftright
    shiftrightunsigned cardinality concat element_at reverse size try_element_at between coalesce if ifnull nanvl
    nullif nullifzero nvl nvl2 when zeroifnull bigint binary boolean cast date decimal double float int smallint
    string timestamp tinyint from_csv to_csv add_months convert_timezone date_add date_diff date_format
    date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek
    dayofyear extract from_unixtime from_utc_timestamp hour last_day make_date make_dt_interval make_interval
    make_timestamp make_timestamp_ltz make_timestamp_ntz make_ym_interval minute month monthname months_between
    next_day quarter second timestamp_micros timestamp_millis timestamp_seconds to_date to_timestamp
    to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp trunc try_make_interval
    try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_to_date try_to_timestamp unix_date
    unix_micros unix_millis unix_seconds unix_timestamp weekday weekofyear year crc32 hash md5 sha sha1 sha2
    xxhash64 from_json get_json_object json_array_length json_object_keys to_json aggregate array_sort exists
    filter forall map_filter map_zip_with reduce transform transform_keys transform_values zip_with map map_concat
    map_contains_key map_entries map_from_arrays map_from_entries map_keys map_values str_to_map abs acos acosh
    asin asinh atan atan2 atanh bin bround cbrt ceil ceiling conv cos cosh cot csc degrees div e exp expm1
    factorial floor greatest hex hypot least ln log log10 log1p log2 mod negative pi pmod positive pow power
    radians rint round sec sign signum sin sinh sqrt tan tanh try_add try_divide try_mod try_multiply try_subtract
    unhex width_bucket typeof and equal_null ilike in isnan isnotnull isnull like not or regexp regexp_like rlike
    ascii base64 bit_length btrim char char_length character_length chr concat_ws contains decode elt encode
    endswith find_in_set format_number initcap instr is_valid_utf8 lcase left len length levenshtein
    locate lower lpad ltrim luhn_check make_valid_utf8 mask octet_length overlay position regexp_count
    regexp_extract regexp_extract_all regexp_instr regexp_replace regexp_substr repeat replace right rpad rtrim
    sentences soundex space split split_part startswith substr substring substring_index to_binary to_char
    to_number to_varchar translate trim try_to_binary try_to_number try_validate_utf8 ucase unbase64 upper
    validate_utf8 named_struct struct parse_url try_parse_url try_url_decode url_decode url_encode
    is_valid_variant is_variant_null parse_json schema_of_variant to_variant_object try_parse_json try_variant_get
    variant_get
    """
)
"""Functions of Spark's own that tell the same of the same, and reach for nothing but their arguments.

Left out are those that tell the time, the user, the session or the place of a row, chance, aggregates, windows and
generators, Java by its name (reflect), those that an argument can lead to a file (from_xml, from_protobuf, avro; and
xpath: a document names its DOCTYPE), and format_string, which shows bytes and times as they lie in Java's memory.
"""

NEED_ARGUMENTS = frozenset({"unix_timestamp", "to_unix_timestamp"})
"""These tell the present time if they are given none."""

TAKE_TYPES = {"from_csv": 1, "from_json": 1, "try_variant_get": 2, "variant_get": 2}
"""Which argument of these is a type. As JSON it may bring classes of Java's, and expressions as default values."""


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression that was checked: its type, in Spark's words, and the columns that it reads."""

    sql: str
    type: str
    columns: tuple[str, ...]


def check_expression(
    spark: SparkSession, schema: Mapping[str, str], sql: str, size_max: int = SIZE_MAX
) -> Expression:
    """Look at an expression over columns of these names and types; a UsageError says why it is refused.

    ``spark``: the session that evaluates it (expression_session.py).
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions

    shown = repr(sql if len(sql) <= SHOWN_MAX else f"{sql[:SHOWN_MAX]}...")
    if not sql.strip() or len(sql) > size_max:
        raise UsageError(f"an expression has from 1 to {size_max} characters, and this one has {len(sql)} characters")
    assert spark.conf.get(SUBSTITUTE) == "false", "else Spark puts something into it before it parses"
    nothing = spark.range(0).select(*(functions.lit(None).cast(kind).alias(name) for name, kind in schema.items()))
    with quiet_queries():
        try:
            why_not = next(_refused_parsed(_parsed(spark, sql), schema, sql), None)
            if why_not is None:
                value = nothing.select(functions.expr(sql).alias("value"))
                plan = value._jdf.queryExecution().analyzed()
                why_not = next(_refused_analyzed(spark, plan), None)
                kind = value.schema["value"].dataType.simpleString()
                # Spark names a column as the expression spells it.
                columns = {each.name().lower() for each in _listed(_value_of(plan).references().toSeq())}
        except (PySparkException, Py4JError) as error:
            raise UsageError(f"{shown} is no expression of Spark SQL over a message: {reason_of(error)}") from None
    if why_not is not None:
        raise UsageError(f"{shown} is refused: {why_not}")
    return Expression(sql, kind, tuple(name for name in schema if name in columns))


# -- the parser's tree ---------------------------------------------------------------------------------------------


def _parsed(spark: Any, sql: str) -> Any:
    """An expression's tree, as it is parsed when it is evaluated."""
    from pyspark.sql import functions

    return spark._jsparkSession.expression(functions.expr(sql)._jc)


def _parts(tree: Any) -> list[dict[str, Any]]:
    """What is known of the nodes of a tree, each before its children."""
    parts: list[dict[str, Any]] = json.loads(tree.toJSON())
    return parts


def _refused_parsed(tree: Any, columns: Collection[str], sql: str) -> Iterator[str]:
    """Why an expression is refused."""
    nodes = _parts(tree)
    yield from _refused_nodes(nodes, columns)
    if any(_kind_of(node) == "Literal" and _is_day(str(node["dataType"])) for node in nodes):
        yield from _refused_times(tree, sql)


def _refused_nodes(nodes: Sequence[dict[str, Any]], columns: Collection[str]) -> Iterator[str]:
    ends = _ends(nodes)
    lambdas: list[tuple[int, set[str]]] = []  # around a node: where they end, and their variables
    for number, node in enumerate(nodes):
        kind = _kind_of(node)
        lambdas = [each for each in lambdas if number < each[0]]
        if kind not in NODES:
            words = re.sub(r"(?<!^)(?=[A-Z])", " ", kind).lower()
            yield f"a {words} is not on the list of what looks at one message alone"
        elif kind == "UnresolvedFunction":
            yield from _refused_call(node)
            yield from _refused_type(nodes, ends, number)
        elif kind == "LambdaFunction":
            variables = nodes[ends[number + 1] : ends[number]]  # behind its body
            lambdas.append((ends[number], {".".join(_names_of(variable)) for variable in variables}))
        elif kind in ("UnresolvedAttribute", "UnresolvedNamedLambdaVariable"):
            first = _names_of(node)[0]
            if first not in columns and not any(first in variables for _, variables in lambdas):
                yield f"there is no column {first}; there are {', '.join(columns)}"


def _ends(nodes: Sequence[dict[str, Any]]) -> list[int]:
    """The number behind the last one below each node."""
    ends = [0] * len(nodes)
    for number in reversed(range(len(nodes))):
        end = number + 1
        for _ in range(nodes[number]["num-children"]):
            end = ends[end]
        ends[number] = end
    return ends


def _refused_call(node: dict[str, Any]) -> Iterator[str]:
    name = ".".join(_names_of(node))
    if name not in FUNCTIONS:
        yield f"the function {name} is not on the list of those that give the same for the same message"
    elif name in NEED_ARGUMENTS and not node["num-children"]:
        yield f"{name}() tells the present time"
    elif node["isDistinct"] or "filter" in node:
        yield "it aggregates"


def _refused_type(nodes: Sequence[dict[str, Any]], ends: Sequence[int], number: int) -> Iterator[str]:
    """Spark reads a type before anybody sees the tree that it makes, so it has to be there as it is, and in SQL."""
    name = ".".join(_names_of(nodes[number]))
    place, argument = TAKE_TYPES.get(name), number + 1
    if place is None or nodes[number]["num-children"] <= place:
        return
    for _ in range(place):
        argument = ends[argument]
    written = nodes[argument].get("value") if _kind_of(nodes[argument]) == "Literal" else None
    if re.match(r"\s*[\w`]", str(written or "")) is None:
        yield f"the type that {name} is given has to be a text in SQL, as 'id bigint, name string'"


def _names_of(node: dict[str, Any]) -> list[str]:
    """The parts of a name, in lower case: ``[default, upper]``."""
    return str(node["nameParts"])[1:-1].lower().split(", ")


def _kind_of(node: dict[str, Any]) -> str:
    return str(node["class"]).rpartition(".")[2].rstrip("$").rpartition("$")[2]


# -- the analyzed one ----------------------------------------------------------------------------------------------


def _refused_analyzed(spark: Any, plan: Any) -> Iterator[str]:
    for part in _parts(_value_of(plan)):
        if not part["class"].startswith(PACKAGE) or _kind_of(part) in SOMEBODYS:
            yield "it calls a function of somebody's own"
    if not _value_of(plan).deterministic():
        yield "it has another value each time"
    # What is short for something else (nvl, left) is that, as it is before Spark looks for ``today``.
    optimizer = spark._jvm.org.apache.spark.sql.catalyst.optimizer
    value = _value_of(getattr(getattr(optimizer, "ReplaceExpressions$"), "MODULE$").apply(plan))
    if any(_kind_of(part) in MAKE_TIMES for part in _parts(value)):
        for node in _nodes(value):
            yield from _refused_making(node)


# -- the clock -----------------------------------------------------------------------------------------------------

OF_CLOCK = "it depends on the clock; what is made a date or a time has to begin with a year, as '2026-01-31 12:00'"
"""Spark takes ``today`` and ``now`` in a constant for the present, and fills in the present day before ``12:00``."""

NO_FORMAT = (
    "it depends on the clock, as a text with the hour alone ('12:00') becomes a timestamp of the present day; "
    "give to_timestamp a format, or take timestamp_ntz, date or string"
)
MAKE_TIMES = frozenset({"Cast", "CsvToStructs", "JsonToStructs", "VariantGet"})
"""Which of Spark's expressions make times of texts without a format. A timestamp_ntz needs a day, as a date does."""

_YEAR = r"\s*[+-]?[0-9]{4}"
_TIME = re.compile(rf"(date|timestamp\w*)\s*(['\"]){_YEAR}", re.IGNORECASE)


def _is_day(kind: str) -> bool:
    return kind.startswith(("date", "timestamp"))


def _refused_times(tree: Any, sql: str) -> Iterator[str]:
    """The parser makes a time of ``date 'today'`` at once: whence it is tells only the place where it is written."""
    for node in _nodes(tree):
        if _class_of(node) == "Literal" and _is_day(node.dataType().simpleString()):
            begin, end = node.origin().startIndex(), node.origin().stopIndex()
            if begin.isEmpty() or _TIME.match(sql[begin.get() : end.get() + 1]) is None:
                yield OF_CLOCK


def _refused_making(node: Any) -> Iterator[str]:
    """Why this may not make dates or times of what it is given."""
    if _class_of(node) not in MAKE_TIMES:
        return
    made = set(filter(_is_day, _plain_types(json.loads(node.dataType().json()))))
    if made and _class_of(node) == "Cast":
        child = node.child()
        given = set(_plain_types(json.loads(child.dataType().json())))
        if any(kind.startswith("time(") for kind in given):
            yield OF_CLOCK
        if not any(kind.startswith(("string", "variant")) for kind in given):
            return
        if _class_of(child) == "Literal":
            if re.match(_YEAR, str(child.value())) is None:
                yield OF_CLOCK
            return
        if child.foldable() and child.dataType().simpleString().startswith("string"):
            yield OF_CLOCK
    if any(kind.startswith("timestamp") and not kind.startswith("timestamp_ntz") for kind in made):
        yield NO_FORMAT


def _plain_types(kind: Any) -> Iterator[str]:
    """The types without parts of which a type is made."""
    if isinstance(kind, str):
        yield kind
    elif isinstance(kind, list):
        for each in kind:
            yield from _plain_types(each["type"])
    else:
        for name in ("fields", "elementType", "keyType", "valueType"):
            yield from _plain_types(kind.get(name, []))


def _class_of(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _value_of(plan: Any) -> Any:
    """The expression that a plan selects."""
    return plan.expressions().head()


def _nodes(root: Any) -> Iterator[Any]:
    todo = [root]
    while todo:
        node = todo.pop()
        yield node
        todo += _listed(node.children())


def _listed(sequence: Any) -> list[Any]:
    """A sequence of Scala's."""
    return [sequence.apply(number) for number in range(sequence.size())]


@contextmanager
def quiet_queries() -> Iterator[None]:
    """Keep Spark from writing each expression that fails to the terminal, with pages of Java's."""
    from pyspark.logger import PySparkLogger

    log = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
