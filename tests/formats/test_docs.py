"""The pages in docs/formats cannot rot: their bytes are decoded, their code is run, their tables are compared."""

import doctest
import json
import re
from pathlib import Path

import pytest

from tests.disks import UnflushedDisk
from whence.formats.rocketmq.consume_queue import BATCH_ENTRY, ENTRY
from whence.formats.rocketmq.index_file import HEADER, ITEM
from whence.formats.rocketmq.message import whole_head
from whence.formats.rocketmq.timer import TIMER_UNIT, WHEEL_SLOT
from whence.formats.time_blocks import TIME_BLOCK
from whence.store.message_store import Dialect
from whence.store.sidecar import Sidecar

FOLDER = Path(__file__).parents[2] / "docs" / "formats"
ROCKETMQS = ("message", "consume-queue", "index-file", "checkpoint", "ids", "config", "timer")
PAGES = [f"{name}.md" for name in (*ROCKETMQS, "time-blocks", "field-values", "sidecar")]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| (\d+) \| (\w+) \| (\w+) \|", re.MULTILINE)


def hex_bytes(block: str) -> bytes:
    """The bytes of a hex block: each line up to the first two spaces, behind which a remark may stand."""
    return bytes.fromhex("".join(line.split("  ")[0] for line in block.splitlines()))


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_is_what_the_code_does(page):
    """``data`` in a pycon block is what the hex (or json) block before it holds."""
    namespace: dict[str, object] = {}
    kinds = set()
    for kind, block in BLOCK.findall((FOLDER / page).read_text("utf-8")):
        kinds.add(kind)
        if kind == "hex":
            namespace["data"] = hex_bytes(block)
        elif kind == "json":
            namespace["data"] = block.encode()
        elif kind == "pycon":
            test = doctest.DocTestParser().get_doctest(block, namespace, page, page, 0)
            runner = doctest.DocTestRunner(verbose=False)
            runner.run(test, clear_globs=False)
            assert runner.summarize(verbose=False).failed == 0
            namespace = test.globs
    assert kinds >= {"hex", "pycon"}


@pytest.mark.parametrize(
    ("page", "dtype"),
    [
        ("message.md", whole_head(0)),
        ("consume-queue.md", ENTRY),
        ("consume-queue.md", BATCH_ENTRY),
        ("index-file.md", HEADER),
        ("index-file.md", ITEM),
        ("timer.md", WHEEL_SLOT),
        ("timer.md", TIMER_UNIT),
        ("time-blocks.md", TIME_BLOCK),
    ],
)
def test_the_tables_of_a_page_are_the_dtypes(page, dtype):
    types = {">i2": "i2", ">i4": "i4", ">i8": "i8", "|V8": "host"}
    expected = [(dtype.fields[name][1], types[dtype[name].str], name) for name in dtype.names]
    rows = [(int(at), kind, field) for at, kind, field in ROW.findall((FOLDER / page).read_text("utf-8"))]
    tables: list[list[tuple[int, str, str]]] = []
    for row in rows:
        if row[0] == 0:
            tables.append([])
        tables[-1].append(row)
    assert expected in tables


def test_every_page_is_checked():
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(PAGES)


def test_every_member_of_a_sidecar_is_on_its_page(tmp_path):
    text = (FOLDER / "sidecar.md").read_text("utf-8")
    Sidecar(Dialect.V5_5, 97, 400, 2000).write(tmp_path, UnflushedDisk())
    (shown,) = [block for kind, block in BLOCK.findall(text) if kind == "json"]
    members = json.loads((tmp_path / "sidecar.json").read_text())
    assert list(json.loads(shown)) == list(members)
    assert [member for member in members if f"`{member}`" not in text] == []
