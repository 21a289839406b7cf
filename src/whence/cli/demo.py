"""The demo: the commands of whence, run one after the other on two stores.

store/    what a RocketMQ 5.5.0 broker wrote; it comes with whence
shop/     a log that is written here, with nothing beside it: its indexes are built on Spark, broken, and mended
"""

from __future__ import annotations

import shlex
import shutil
import tarfile
from argparse import Namespace
from collections.abc import Callable
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from whence.cli.explanation import explanation_text
from whence.cli.inspection import inspection_text
from whence.cli.job_bars import JobBars
from whence.cli.render import answer_table, built_text, receipt_text, repaired_text, verified_text
from whence.cli.terminal import Screen
from whence.door import Store, build_store, create_store, open_store, repair_store, verify_store
from whence.errors import UsageError
from whence.files.names import sidecar_of
from whence.formats.rocketmq.index_file import DEFAULT_SLOT_CAPACITY, ITEM, item_position
from whence.lookup.answer import Answer, as_json
from whence.store.inspection import inspect_file

Result = TypeVar("Result")

MESSAGES = 200_000
BATCH = 4000
LOG_FILE_SIZE = 32 * 1048576
assert MESSAGES % BATCH == 0 and ITEM.fields is not None
PHYSICAL_OFFSET_AT = ITEM.fields["physical_offset"][1] + 6  # a byte that every offset of this log uses
INDEX_FILE = "20261116004210875"
"""The oldest index file of the sample store."""


def unpack_sample(folder: Path) -> Path:
    """Unpack the sample store into ``folder``; the folder of the store."""
    archive = resources.files("whence.sample") / "store.tar.gz"
    with archive.open("rb") as file, tarfile.open(fileobj=file, mode="r:gz") as members:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and later; they ask which members are safe to unpack
            members.extraction_filter = tarfile.data_filter
        members.extractall(folder)
    return folder / "store"


def write_log(folder: Path) -> None:
    """Write a store of messages, and leave nothing of it but its log."""
    written = folder.with_name(f".{folder.name}")
    with create_store(written, file_size=LOG_FILE_SIZE, slots=1000, items=MESSAGES) as store:
        for first in range(0, MESSAGES, BATCH):
            numbers = range(first, first + BATCH)
            topic = ("orders", "payments", "parcels")[first // BATCH % 3]
            bodies = [f'{{"order": {number}, "step": "{topic}"}}'.encode() for number in numbers]
            keys = [[f"order-{number % 20_000}", f"customer-{number % 997}"] for number in numbers]
            store.append_batch(topic, bodies, keys=keys, tags="paid", queue=first // BATCH % 4)
    folder.mkdir()
    (written / "commitlog").rename(folder / "commitlog")
    shutil.rmtree(written)


def break_byte(index: Path) -> tuple[Path, int]:
    """Change one byte of an index file: an item leads elsewhere then."""
    path = min(index.iterdir())
    position = item_position(DEFAULT_SLOT_CAPACITY, 4711) + PHYSICAL_OFFSET_AT
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
    return path, position


def run_demo(given: Namespace, screen: Screen) -> None:
    """Run the demo in the folder that was asked for, or in one that goes when it ends."""
    if given.dir is None:
        with TemporaryDirectory(prefix="whence-demo-") as temporary:
            _run(Path(temporary), given, screen)
        return
    folder = Path(given.dir)
    for name in ("store", "shop", "shop.whence"):
        if (folder / name).exists():
            raise UsageError(f"{folder / name}: is there already; ask it, or name another folder with --dir")
    folder.mkdir(parents=True, exist_ok=True)
    _run(folder, given, screen)


def _run(folder: Path, given: Namespace, screen: Screen) -> None:
    demo = _Demo(folder, screen, as_text=not given.json, quiet=given.quiet)
    demo.run()
    if given.json:
        screen.line(as_json({"store": str(demo.path), "steps": demo.shown}))
    else:
        demo.say_what_next(kept=given.dir is not None)


class _Demo:
    """Each step says what it shows, prints the command that shows it, and runs that."""

    def __init__(self, folder: Path, screen: Screen, *, as_text: bool, quiet: bool) -> None:
        self.path = folder / "store"
        self.shown: list[dict[str, Any]] = []
        self._folder = folder
        self._screen = screen
        self._as_text = as_text
        self._quiet = quiet

    def run(self) -> None:
        self._say(f"Unpack the sample: a store that a RocketMQ 5.5.0 broker wrote, to {self.path}", None, {})
        unpack_sample(self._folder)
        with open_store(self.path) as store:
            self._find(store, "Who touched order-1? The three newest messages, and a receipt", key="order-1", limit=3)
            self._find(
                store,
                "Aa and BB have the same hash, so the index cannot tell them apart. The message itself decides",
                key="Aa",
                topic="TopicTest",
            )
            self._explain(
                store,
                "How does it find a message? The walk, step by step",
                key="order-1",
                topic="Order-Events_2",
                limit=2,
            )
            self._find(
                store,
                "What was stored in this tenth of a second? Both ends count, to the millisecond",
                since="2026-11-16T00:42:38.009Z",
                until="2026-11-16T00:42:38.100Z",
                topic="Order-Events_2",
            )
            self._find(store, "A key that nobody used: the receipt proves the no", key="order-4711")
        self._inspect(
            "What is in an index file? Its header in words, and its first items", self.path / "index" / INDEX_FILE
        )
        self._run_pipeline(self._folder / "shop")

    def _run_pipeline(self, shop: Path) -> None:
        """Build, verify and repair the indexes of a log, in one session of Spark."""
        self._say(f"Write {MESSAGES:,} messages of a shop, and keep nothing but their log, in {shop}", None, {})
        write_log(shop)
        with open_store(shop) as store:
            title = "No index, no queues, and yet an exact answer: the log is scanned"
            self._find(store, title, key="order-4711", limit=2)
        if find_spec("pyspark") is None:
            self._say("The rest runs on Spark: pip install 'whence[spark]', and again", None, {})
            return
        from whence.pipeline.session import open_session

        with open_session():
            built = self._run(build_store, shop)
            self._say("Build its indexes on Spark, on all cores", ["build", str(shop)], built.to_dict())
            self._show(built_text, built)
            with open_store(shop) as store:
                self._find(store, "The same question: now the index answers", key="order-4711", limit=2)
            path, position = break_byte(sidecar_of(shop) / "index")
            self._say(f"Break a byte, of {path.name} at {position}, and see who notices", ["verify", str(shop)], {})
            verified = self._run(verify_store, shop)
            self.shown[-1]["result"] = verified.to_dict()
            self._show(verified_text, verified)
            repaired = self._run(repair_store, shop)
            self._say("Mend it: that file is made anew from the log", ["repair", str(shop)], repaired.to_dict())
            self._show(repaired_text, repaired)
        with open_store(shop) as store:
            self._find(store, "And it is found again", key="order-4711", limit=2)

    def _run(self, job: Callable[..., Result], shop: Path) -> Result:
        with JobBars(quiet=self._quiet) as bars:
            return job(shop, watcher=bars)

    def _show(self, text: Callable[[Any, Screen], None], result: Any) -> None:
        if self._as_text:
            text(result, self._screen)

    def say_what_next(self, *, kept: bool) -> None:
        screen = self._screen
        store = shlex.quote(str(self.path)) if kept else "demo/store"
        screen.line()
        screen.line(screen.bold("Now you:"))
        if not kept:
            screen.line("  whence demo --dir demo                      keeps the store, to be asked as below")
        screen.line(f"  whence find {store} --key hot-key --all       300 messages of one key")
        screen.line(f"  whence find {store} --since 2026-11-16 --tag Ordered --body")
        screen.line(f"  whence inspect {store}/checkpoint")
        screen.line(f"  whence build {store}                 its indexes, beside it")
        screen.line("  whence find --help                          all that can be asked")

    def _find(self, store: Store, title: str, **question: Any) -> None:
        answer = store.find(**question)
        self._say(title, ["find", _folder(store), *_typed(question)], answer.to_dict())
        if self._as_text:
            self._answer(answer)

    def _explain(self, store: Store, title: str, **question: Any) -> None:
        explanation = store.explain(**question)
        self._say(title, ["explain", _folder(store), *_typed(question)], explanation.to_dict())
        if self._as_text:
            explanation_text(explanation, self._screen)
            self._answer(explanation.answer)

    def _answer(self, answer: Answer) -> None:
        answer_table(answer, self._screen, body=False)
        receipt_text(answer, self._screen)

    def _inspect(self, title: str, path: Path) -> None:
        inspection = inspect_file(path, limit=5)
        self._say(title, ["inspect", str(path), "--limit", "5"], inspection.to_dict())
        if self._as_text:
            inspection_text(inspection, self._screen)

    def _say(self, title: str, command: list[str] | None, result: dict[str, Any]) -> None:
        typed = None if command is None else shlex.join(["whence", *command])
        self.shown.append({"title": title, "command": typed, "result": result})
        if self._as_text:
            if len(self.shown) > 1:
                self._screen.line()
            self._screen.line(self._screen.bold(f"{len(self.shown)}. {title}."))
            if typed is not None:
                self._screen.line(self._screen.dim(f"   $ {typed}"))
                self._screen.line()


def _folder(store: Store) -> str:
    return str(store.stores[0].folder)


def _typed(question: dict[str, Any]) -> list[str]:
    """The options that ask a question."""
    return [text for name, value in question.items() for text in (f"--{name}", str(value))]
