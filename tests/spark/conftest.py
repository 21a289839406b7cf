"""A Spark session for all tests of a process: it takes seconds to start."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from whence.pipeline.runner import Runner
from whence.pipeline.session import open_session

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session", autouse=True)
def importable() -> None:
    """Workers import the tasks of tests/ as they import whence: from the path."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(ROOT))


@pytest.fixture(scope="session")
def spark(importable: None) -> Iterator[SparkSession]:
    with open_session() as session:
        yield session


@pytest.fixture
def runner(spark: SparkSession) -> Runner:
    return Runner(spark)
