"""Runs a notebook's code, cell by cell, as Jupyter would, and gives what each cell shows.

    python tests/examples/notebook.py NOTEBOOK            prints the notebook with the outputs of all cells
    python tests/examples/notebook.py NOTEBOOK --write    puts them into the file

That is all of Jupyter that examples/ need: cells in one namespace, what they print, the value of a last line that is
an expression, and the figures of matplotlib. Jupyter's own way to run one brings some thirty packages.
"""

from __future__ import annotations

import ast
import io
import json
import os
import sys
import tempfile
from base64 import b64encode
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

PNG = "image/png"


def run_cell(source: str, number: int, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """What a cell shows, as a notebook keeps it. A semicolon at its end hides the value, as in Jupyter."""
    name = f"cell {number}"
    tree = ast.parse(source, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.endswith(";"):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    printed = io.StringIO()
    value = None
    with redirect_stdout(printed):
        exec(compile(tree, name, "exec"), namespace)
        if last is not None:
            value = eval(compile(last, name, "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": lines(repr(value))}
        outputs.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return outputs + [{"data": data, "metadata": {}, "output_type": "display_data"} for data in figures()]


def figures() -> list[dict[str, Any]]:
    """The figures that the cell drew, which end with it."""
    if "matplotlib.pyplot" not in sys.modules:
        return []
    from matplotlib import pyplot

    drawn = []
    for number in pyplot.get_fignums():
        figure, picture = pyplot.figure(number), io.BytesIO()
        figure.savefig(picture, format="png", dpi=100, bbox_inches="tight", metadata={"Software": None})
        size = f"<Figure size {figure.bbox.width:.0f}x{figure.bbox.height:.0f} with {len(figure.axes)} Axes>"
        drawn.append({PNG: b64encode(picture.getvalue()).decode(), "text/plain": [size]})
    pyplot.close("all")
    return drawn


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def run(notebook: Path) -> dict[str, Any]:
    """The notebook, with the outputs of all cells as they come out now, in the present folder."""
    document: dict[str, Any] = json.loads(notebook.read_text("utf-8"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    for cell in document["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            cell["execution_count"] = number
            cell["outputs"] = run_cell("".join(cell["source"]), number, namespace)
    return document


def main(path: str, *options: str) -> None:
    os.environ["MPLBACKEND"] = "agg"
    notebook = Path(path).absolute()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        document = run(notebook)
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if "--write" in options:
        notebook.write_text(text, "utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
