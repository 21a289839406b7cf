"""``find_many`` on a real Spark, through the door and through the command line."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

import whence
from whence.cli.commands import main

pytestmark = pytest.mark.slow


def test_spark_gives_what_one_process_gives(spark, golden, tmp_path, capsys):
    known = golden("v5-clean")
    keys = [*dict.fromkeys(key for record in known.records for key in record.keys), "absent"]
    columns = ["physical_offset", "keys", "tags", "properties", "body"]
    with whence.open(known.store) as store:
        for question in ({}, {"scan": True}):
            alone = store.answer_many(keys, columns=columns, spark=False, **question)
            on_spark = store.answer_many(keys, columns=columns, spark=True, **question)
            assert on_spark.table.equals(alone.table)
            assert on_spark.missing.to_pylist() == alone.missing.to_pylist()
            alone.receipt.elapsed_us = on_spark.receipt.elapsed_us = 0
            assert on_spark.receipt == alone.receipt

    path, out = tmp_path / "keys.txt", tmp_path / "found.parquet"
    path.write_text("\n".join(keys))
    asked = ["find", str(known.store), "--keys-from", str(path), "--columns", ",".join(columns), "--scan"]
    status = main([*asked, "--format", "parquet", "-o", str(out), "--master", spark.sparkContext.master, "--quiet"])
    assert status == 0
    assert parquet.read_table(out).equals(alone.table)
    capsys.readouterr()
    status = main([*asked, "--json", "--conf", "spark.task.maxFailures=1"])
    document = json.loads(capsys.readouterr().out)
    assert status == 0
    assert [row["key"] for row in document["messages"]] == alone.table["key"].to_pylist()
    assert document["receipt"]["rows"] == len(alone)
    assert pa.Table.from_pylist(document["messages"])["physical_offset"].equals(alone.table["physical_offset"])
