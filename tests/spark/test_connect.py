"""``spark.read.format("whence")`` over Spark Connect: a client without a JVM asks a server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.source_rows import all_rows, make_odd_store
from tests.spark.conftest import PYTHON_PATH

pytestmark = pytest.mark.slow
CLIENT = Path(__file__).with_name("connected.py")


@pytest.fixture
def address(spark: Any) -> Iterator[str]:
    """Of a server in the session of the tests, at a port that the system chose."""
    java = spark.sparkContext._jvm
    context = spark.sparkContext._jsc.sc()
    context.conf().set("spark.connect.grpc.binding.address", "127.0.0.1")
    context.conf().set("spark.connect.grpc.binding.port", "0")
    service = getattr(getattr(java.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")
    service.start(context)
    yield f"sc://127.0.0.1:{service.localPort()}"
    service.stop(java.scala.Option.empty(), java.scala.Option.empty())


def test_a_client_of_a_server_gets_the_same_rows(address, tmp_path):
    pytest.importorskip("grpc", reason="grpcio is not installed: it comes with pyspark[connect]")
    odd = make_odd_store(tmp_path / "store", 400, 350)
    run = subprocess.run(
        [sys.executable, str(CLIENT), address, str(odd.folder)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": PYTHON_PATH},
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert told["module"] == "pyspark.sql.connect.session"
    rows = all_rows(odd.folder, by_key=True)
    at = {key: [row["physical_offset"] for row in rows if row["key"] == key] for key in ("a", "ключ")}
    assert told["all"] == len(rows)
    assert told["one"] == told["by SQL"] == told["narrowed"] == len(at["a"]) > 0
    assert told["other"] == at["ключ"]
    assert told["both"] == len(set(at["a"]) & set(at["ключ"])) > 0
    assert told["stream"] == odd.offsets
    ((warned, file),) = [each for each in told["warned"] if "narrow" in each[0]]
    assert warned.startswith("in this session filters narrow nothing") and "Spark Connect" in warned
    assert 'option("pushdown", "always")' in warned and file == str(CLIENT)
    # What runs as tasks says at once that it cannot run here.
    assert told["found here"] == len(at["a"])
    assert "a client of Spark Connect" in told["found on Spark"] and "process" in told["found on Spark"]
    # Nothing is narrowed that another query may use, unless the user says that none does.
    assert "PushedFilters" not in told["plan"]
    assert "EqualTo(key,a)" in told["narrowed plan"]
    assert "cannot load the source: ModuleNotFoundError: No module named 'nowhere'" in told["not there"]
    assert "whence[spark] has to be installed there" in told["not there"]
