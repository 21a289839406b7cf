"""The demo: the commands of whence, run one after the other on the store that comes with it."""

from __future__ import annotations

import shlex
import tarfile
from argparse import Namespace
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from whence.cli.explanation import explanation_text
from whence.cli.inspection import inspection_text
from whence.cli.render import answer_table, as_json, receipt_text
from whence.cli.terminal import Screen
from whence.door import Store, open_store
from whence.errors import UsageError
from whence.lookup.answer import Answer
from whence.store.inspection import inspect_file

INDEX_FILE = "20261116004210875"
"""The oldest index file of the sample store."""


def unpack_sample(folder: Path) -> Path:
    """Unpack the sample store into ``folder``; the folder of the store."""
    archive = resources.files("whence.sample") / "store.tar.gz"
    with archive.open("rb") as file, tarfile.open(fileobj=file, mode="r:gz") as members:
        members.extractall(folder, filter="data")
    return folder / "store"


def run_demo(given: Namespace, screen: Screen) -> None:
    """Run the demo in the folder that was asked for, or in one that goes when it ends."""
    if given.dir is None:
        with TemporaryDirectory(prefix="whence-demo-") as temporary:
            _run(Path(temporary), given, screen)
        return
    folder = Path(given.dir)
    if (folder / "store").exists():
        raise UsageError(f"{folder / 'store'}: is there already; ask it, or name another folder with --dir")
    folder.mkdir(parents=True, exist_ok=True)
    _run(folder, given, screen)


def _run(folder: Path, given: Namespace, screen: Screen) -> None:
    demo = _Demo(folder, screen, as_text=not given.json)
    demo.run()
    if given.json:
        screen.line(as_json({"store": str(demo.path), "steps": demo.shown}))
    else:
        demo.say_what_next(kept=given.dir is not None)


class _Demo:
    """Each step says what it shows, prints the command that shows it, and runs that."""

    def __init__(self, folder: Path, screen: Screen, *, as_text: bool) -> None:
        self.path = folder / "store"
        self.shown: list[dict[str, Any]] = []
        self._folder = folder
        self._screen = screen
        self._as_text = as_text

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
        screen.line("  whence find --help                          all that can be asked")

    def _find(self, store: Store, title: str, **question: Any) -> None:
        answer = store.find(**question)
        self._say(title, ["find", str(self.path), *_typed(question)], answer.to_dict())
        if self._as_text:
            self._answer(answer)

    def _explain(self, store: Store, title: str, **question: Any) -> None:
        explanation = store.explain(**question)
        self._say(title, ["explain", str(self.path), *_typed(question)], explanation.to_dict())
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


def _typed(question: dict[str, Any]) -> list[str]:
    """The options that ask a question."""
    return [text for name, value in question.items() for text in (f"--{name}", str(value))]
