"""Which expressions can be a field: those that give the same value for the same message, and look at nothing else.

    SQL -> tree of Spark's parser     every node is known, every function is on the list below, every name is a column
        -> analyzed                   as any expression over a message (expressions.py), of a type that has a text

An expression that a user types runs once; one in a sidecar runs again and again, for whoever builds or verifies, and
may be anybody's. So what is not known is refused here, and a function that a later Spark adds reaches nothing. It is
checked each time before it runs, in a session of its own, where nobody has put another function or variable under a
known name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from whence.errors import UsageError
from whence.pipeline.expressions import SHOWN_MAX, check_expression, listed, parts_of, quiet_queries
from whence.store.field_claim import SQL_SIZE_MAX
from whence.store.message_columns import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    endswith find_in_set format_number format_string initcap instr is_valid_utf8 lcase left len length levenshtein
    locate lower lpad ltrim luhn_check make_valid_utf8 mask octet_length overlay position printf regexp_count
    regexp_extract regexp_extract_all regexp_instr regexp_replace regexp_substr repeat replace right rpad rtrim
    sentences soundex space split split_part startswith substr substring substring_index to_binary to_char
    to_number to_varchar translate trim try_to_binary try_to_number try_validate_utf8 ucase unbase64 upper
    validate_utf8 named_struct struct parse_url try_parse_url try_url_decode url_decode url_encode
    is_valid_variant is_variant_null parse_json schema_of_variant to_variant_object try_parse_json try_variant_get
    variant_get xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short
    xpath_string
    """
)
"""Functions of Spark's own that tell the same of the same, and reach for nothing but their arguments.

Left out are those that tell the time, the user, the session or the place of a row, chance, aggregates, windows and
generators, Java by its name (reflect), and those that an argument can lead to a file (from_xml, from_protobuf, avro).
"""

NEED_ARGUMENTS = frozenset({"unix_timestamp", "to_unix_timestamp"})
"""These tell the present time if they are given none."""

TYPES = _names(
    """
    string varchar char boolean tinyint smallint int bigint float double decimal date timestamp timestamp_ntz binary
    interval
    """
)
"""Of which texts are made."""


@dataclass(frozen=True, slots=True)
class CheckedSql:
    """An expression that can be a field: the columns it looks at, and whether it gives several values."""

    sql: str
    columns: tuple[str, ...]
    is_array: bool


def check_sql(session: SparkSession, name: str, sql: str) -> CheckedSql:
    """The expression, if it can be a field; a UsageError says why not. ``session`` has nothing but Spark's own."""
    from pyspark.errors import PySparkException

    shown = repr(sql[:SHOWN_MAX])
    if not sql.strip() or len(sql) > SQL_SIZE_MAX:
        raise UsageError(f"field {name}: its expression has {len(sql)} characters; it has 1 to {SQL_SIZE_MAX}")
    with quiet_queries():
        try:
            why_not = next(_refused(_parsed(session, sql), frozenset()), None)
        except PySparkException as error:
            raise UsageError(f"field {name}: {shown} is no expression of Spark SQL: {reason_of(error)}") from error
    if why_not is not None:
        raise UsageError(f"field {name}: {shown} cannot be indexed: {why_not}")
    try:
        expression = check_expression(session, COLUMNS, sql)
    except UsageError as error:
        raise UsageError(f"field {name}: {error}") from error
    kind = expression.type.removeprefix("array<")
    if not re.match(rf"({'|'.join(TYPES)})\b", kind):
        raise UsageError(
            f"field {name}: {shown} gives {expression.type[:SHOWN_MAX]}, of which no text is made; "
            "take a member of it, or an array of plain values"
        )
    return CheckedSql(sql, expression.columns, expression.type != kind)


def reason_of(error: BaseException) -> str:
    """What Spark says, in one line, without the query around it."""
    text = re.split(r"\n== SQL|SQLSTATE:|\n\tat |;\n", str(error))[0]
    return " ".join(text.split())[:400]


# -- the parser's tree ---------------------------------------------------------------------------------------------


def _parsed(session: SparkSession, sql: str) -> Any:
    return session._jsparkSession.sessionState().sqlParser().parseExpression(sql)


def _refused(node: Any, bound: frozenset[str]) -> Iterator[str]:
    """Why an expression cannot be a field. ``bound``: variables of the lambdas around it."""
    kind = node.getClass().getSimpleName()
    children = parts_of(node)
    if kind not in NODES:
        yield f"{_words(kind)} {_told(node)} is not on the list of what can"
        return
    if kind == "UnresolvedFunction":
        yield from _refused_call(node, len(children))
    elif kind in ("UnresolvedAttribute", "UnresolvedNamedLambdaVariable"):
        first = str(node.nameParts().apply(0)).lower()
        if first not in bound and first not in COLUMNS:
            yield f"there is no column {first}; there are {', '.join(COLUMNS)}"
    elif kind == "LambdaFunction":
        children, variables = children[:1], children[1:]
        bound |= {str(variable.nameParts().apply(0)).lower() for variable in variables}
    for child in children:
        yield from _refused(child, bound)


def _refused_call(node: Any, argument_count: int) -> Iterator[str]:
    name = ".".join(map(str, listed(node.nameParts()))).lower()
    if name not in FUNCTIONS:
        yield f"the function {name} is not on the list of those that give the same for the same message"
    elif name in NEED_ARGUMENTS and not argument_count:
        yield f"{name}() tells the present time"
    elif node.isDistinct() or node.filter().isDefined():
        yield "it aggregates"


def _words(kind: str) -> str:
    """The name of a node in words: ScalarSubquery -> scalar subquery."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", kind.removesuffix("$")).lower()


def _told(node: Any) -> str:
    return " ".join(str(node.toString()).split())[:80]
