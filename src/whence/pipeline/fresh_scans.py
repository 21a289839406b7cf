"""A plan of its own for each scan of the source: what makes pushed filters safe.

Spark 4.1 to 4.3 keep one plan for all that is made of one ``load()``: the filters that were pushed down last. Who
counts ``df.where("key = 'a'")`` and then ``df`` gets the first count twice, and a join of two parts of ``df`` reads
one part twice. So the source does not let filters narrow a plan that others may use. Instead, a rule at the end of
Spark's optimizer gives each scan a source of its own, and pushes the filters that stand above the scan into that
one. It runs where queries are optimized, in Java, and is compiled when a session gets to know the source, by the
compiler that Spark has for its own generated code.

Where that cannot be, as under Spark Connect, nothing is narrowed: answers are right, and each takes a scan. Then
``option("pushdown", "always")`` says that a ``load()`` serves one query only.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULE = "whence.FreshScans"

SOURCE = Path(__file__).with_name("FreshScans.java")


def install(spark: SparkSession) -> str:
    """Add the rule to a session, if it is not there. Why it cannot be added; "" if it can."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return "a client of Spark Connect cannot add a rule to its server's optimizer"  # nor need it have py4j
    from py4j.protocol import Py4JError, Py4JJavaError

    jvm = spark._jvm
    assert jvm is not None
    try:
        methods = session.experimental()
        rules = methods.extraOptimizations()
        if any(rules.apply(number).ruleName() == RULE for number in range(rules.size())):
            return ""
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
        compiler.cook(SOURCE.read_text())
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        constructor = (
            compiler.getClassLoader()
            .loadClass(RULE)
            .getDeclaredConstructor(gateway.new_array(jvm.java.lang.Class, 0))
        )
        rule = constructor.newInstance(gateway.new_array(jvm.java.lang.Object, 0))
        getattr(methods, "extraOptimizations_$eq")(rules.appended(rule))
    except (Py4JError, Py4JJavaError, TypeError) as error:
        reason = str(getattr(error, "java_exception", error)).partition("\n")[0]
        return f"this Spark does not take a rule of its optimizer: {reason}"
    return ""
