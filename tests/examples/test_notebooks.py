"""The notebooks of examples/ run, and what they show is what comes out."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples import notebook
from tests.spark.conftest import PYTHON_PATH
from whence.pipeline.java import find_java

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))
SIZE_MAX = 100_000  # bytes: an example is there to be read


def shown(document: dict[str, Any], *, with_pictures: bool) -> list[list[dict[str, Any]]]:
    """The outputs of each cell. The pixels of a picture are matplotlib's affair, and change with its version."""
    outputs = [cell["outputs"] for cell in document["cells"] if cell["cell_type"] == "code"]
    for output in (output for cell in outputs for output in cell):
        picture = output.get("data", {}).get(notebook.PNG)
        if picture is not None and not with_pictures:
            output["data"][notebook.PNG] = "a picture"
    return outputs


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_was_run_from_its_first_cell_to_its_last(path):
    document = json.loads(path.read_text("utf-8"))
    counts = [cell["execution_count"] for cell in document["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert path.stat().st_size < SIZE_MAX
    pictures = [
        output["data"][notebook.PNG]
        for cell in shown(document, with_pictures=True)
        for output in cell
        if notebook.PNG in output.get("data", {})
    ]
    assert pictures and all(picture.startswith("iVBORw0KGgo") for picture in pictures)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_its_cells_give(path, tmp_path):
    """To write what they give now: ``python tests/examples/notebook.py examples/orders.ipynb --write``."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: it comes with whence[dev]")
    java = find_java(os.environ).home_for_spark(tmp_path)
    environment = os.environ | {"PYTHONPATH": PYTHON_PATH, "TMPDIR": str(tmp_path), "JAVA_HOME": str(java)}
    # Java's second compiler is no help to a few short queries, and takes the cores from them.
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    environment.pop("PYSPARK_PYTHON", None)  # as a reader has it, who set nothing
    ran = subprocess.run(
        [sys.executable, notebook.__file__, str(path)], capture_output=True, text=True, timeout=200, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    committed = json.loads(path.read_text("utf-8"))
    assert shown(json.loads(ran.stdout), with_pictures=False) == shown(committed, with_pictures=False)
