"""Reasons: what Spark says of an error, in one line, out of the pages that it writes.

reason_of        of any error
why_of           of one that an expression is at fault for
first_failing    which of many it fails on, that Spark does not tell
"""

from __future__ import annotations

import re
from collections.abc import Callable

REASON_SIZE = 500


def reason_of(error: BaseException | str) -> str:
    """Which task failed, if one did, and why: without the query around it."""
    java_error = getattr(error, "java_exception", None)
    text = str(error if java_error is None else java_error.getMessage() or java_error.toString())
    told = re.search(r"TaskError: (.*)", text)
    if told:
        return told[1].strip()
    text = re.split(r"\n== SQL|;\n|SQLSTATE:|\n\tat |\n\s*Driver stacktrace", text)[0]
    lost = re.search(
        r"Task (\d+) in .* failed (\d+) times, most recent failure: .*?\(TID \d+\) (.*)", text, re.DOTALL
    )
    what = lost[3] if lost else text
    if "Traceback (most recent call last)" in what:
        what = f"{what.partition(':')[0]}: {what.rstrip().rpartition(chr(10))[2]}"
    if "No module named 'whence'" in what:
        what = "the Python of the executors has no whence; docs/cluster.md tells how to install it there"
    what = " ".join(what.split())[:REASON_SIZE] or type(error).__name__
    return f"task {lost[1]}, attempt {lost[2]}: {what}" if lost else what


def why_of(error: BaseException | None) -> str | None:
    """Why an expression fails; None if an error of Spark's is not of a query, but of the machines or of Python."""
    from py4j.java_gateway import is_instance_of
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException, PythonException, SparkRuntimeException

    if isinstance(error, PySparkException):
        has_state = not isinstance(error, PythonException) and error.getSqlState() is not None
        return reason_of(error) if has_state or isinstance(error, SparkRuntimeException) else None
    if not isinstance(error, Py4JJavaError):
        return None
    # What PySpark has no name for: an error of Spark's with a state of SQL (parse_json), or one of Java's (split).
    gateway, failure = SparkContext._gateway, error.java_exception
    if is_instance_of(gateway, failure, "org.apache.spark.SparkThrowable") and failure.getSqlState():
        return reason_of(failure.getMessage())
    cause = failure.getCause()
    for thrown in (failure, cause):  # by what is constant, before there are tasks, or in a task
        if is_instance_of(gateway, thrown, "java.lang.VirtualMachineError"):  # no heap, or no stack, is left
            return reason_of(thrown.toString())
    if is_instance_of(gateway, cause, "java.lang.RuntimeException") and cause.getClass().getName().startswith(
        "java."
    ):
        return reason_of(cause.toString())
    return None


def first_failing(count: int, fails: Callable[[int, int], str | None]) -> int:
    """The first of so many that fails: halves are tried, until one is left.

    One of them does, and if not the last one is as good as any.
    """
    begin, end = 0, count
    while end - begin > 1:
        middle = (begin + end) // 2
        begin, end = (begin, middle) if fails(begin, middle) is not None else (middle, end)
    return begin
