"""Build: with any number of tasks the files of one dispatch, and so RocketMQ's own."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.golden import CLEAN, CRASHED, DIRECT, GoldenStore
from tests.store.test_dispatch import files_below, in_header_order
from whence.files.disk import Disk
from whence.pipeline.build import Build, BuildPlace, BuildSettings, Built
from whence.store.commit_log import CommitLog
from whence.store.index_file import Shape
from whence.store.message_store import Dialect
from whence.store.sidecar import read_sidecar


class OneByOne:
    """Runs tasks in this process, one after the other."""

    def __init__(self, slots: int = 2) -> None:
        self.slots = slots
        self.ran: list[str] = []

    def map(
        self,
        name: str,
        task: Callable[[Any], Any],
        inputs: Sequence[Any],
        *,
        size_of: Callable[[Any], int] | None = None,
    ) -> list[Any]:
        self.ran += [name] * len(inputs)
        return [task(each) for each in inputs]


def build(store: Path, sidecar: Path, runner: OneByOne | None = None, **settings) -> Built:
    log = CommitLog(store / "commitlog")
    sidecar.mkdir(exist_ok=True)
    try:
        given = BuildSettings(**settings)
        return Build(
            log, BuildPlace(sidecar, sidecar), given, read_sidecar(sidecar), runner or OneByOne(), Disk()
        ).run()
    finally:
        log.close()


def settings_of(store: GoldenStore) -> dict[str, Any]:
    return {
        "shape": Shape(store.slot_capacity, store.item_capacity),
        "dialect": Dialect(store.dialect),
        "queue_file_size": store.queue_file_size,
    }


@pytest.mark.parametrize("jobs", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("name", CLEAN + DIRECT + CRASHED)
def test_a_build_gives_rocketmqs_bytes_with_any_number_of_tasks(golden, tmp_path, name, jobs):
    store = golden(name)
    built = build(store.store, tmp_path / "sidecar", jobs=jobs, **settings_of(store))
    assert files_below(tmp_path / "sidecar/consumequeue") == files_below(store.store / "consumequeue")
    assert in_header_order(tmp_path / "sidecar/index") == in_header_order(store.store / "index")
    assert built.messages == len(store.records)
    assert not (tmp_path / "sidecar/work").exists()
