"""A client of Spark Connect, in a process that has no Java: ``python connected.py ADDRESS STORE``.

Asks a server what docs/spark.md promises, and prints what it got as JSON.
"""

import io
import json
import sys
import warnings
from contextlib import redirect_stdout
from typing import Any

from pyspark.sql import SparkSession

import whence
from whence.errors import UsageError
from whence.pipeline import source


def main(address: str, store: str) -> None:
    spark: Any = SparkSession.builder.remote(address).getOrCreate()
    told: dict[str, Any] = {"module": type(spark).__module__}

    source.WhenceSource.__module__ = "nowhere"  # as if the server had no whence
    sys.modules["nowhere"] = source
    try:
        whence.spark.register(spark)
    except UsageError as error:
        told["not there"] = str(error)
    source.WhenceSource.__module__ = source.__name__
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        whence.spark.register(spark)
    told["warned"] = [[str(each.message), each.filename] for each in warned]

    def load(**options: str) -> Any:
        return spark.read.format("whence").options(rows="key", **options).load(store)

    def plan(frame: Any) -> str:
        with redirect_stdout(io.StringIO()) as printed:
            frame.explain("formatted")
        return printed.getvalue()

    keys = load()
    told["one"] = keys.where("key = 'a'").count()
    told["all"] = keys.count()
    told["other"] = sorted(row["physical_offset"] for row in keys.where("key = 'ключ'").collect())
    told["both"] = keys.where("key = 'a'").join(keys.where("key = 'ключ'"), "physical_offset").count()
    keys.createOrReplaceTempView("keys")
    told["by SQL"] = spark.sql("select count(*) from keys where key = 'a'").first()[0]
    told["plan"] = plan(keys.where("key = 'a'"))
    narrowed = load(pushdown="always").where("key = 'a'")
    told["narrowed"], told["narrowed plan"] = narrowed.count(), plan(narrowed)

    messages = spark.readStream.format("whence").option("columns", "physical_offset").load(store)
    writer = messages.writeStream.format("memory").queryName("messages")
    writer.trigger(availableNow=True).start().awaitTermination()
    told["stream"] = sorted(row["physical_offset"] for row in spark.table("messages").collect())

    with whence.open(store) as opened:
        told["found here"] = opened.find_many(["a"], system_topics=True).num_rows
        try:
            opened.find_many(["a"], spark=True)
        except UsageError as error:
            told["found on Spark"] = str(error)
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
