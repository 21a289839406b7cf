"""Golden stores, opened for questions once a session, and their judges."""

from collections.abc import Callable, Iterator

import pytest

import whence
from tests.golden import GoldenStore
from tests.lookup.judge import Judge


@pytest.fixture(scope="session")
def asked(golden: Callable[[str], GoldenStore]) -> Iterator[Callable[[str], whence.Store]]:
    """``asked(name)`` is a golden store that takes questions."""
    stores: dict[str, whence.Store] = {}

    def get(name: str) -> whence.Store:
        if name not in stores:
            stores[name] = whence.open(golden(name).store)
        return stores[name]

    yield get
    for store in stores.values():
        store.close()


@pytest.fixture(scope="session")
def judge(golden: Callable[[str], GoldenStore]) -> Callable[[str], Judge]:
    """``judge(name)`` knows every right answer of a golden set."""
    judges: dict[str, Judge] = {}

    def get(name: str) -> Judge:
        if name not in judges:
            records = golden(name).records
            if name == "v5-damaged-half-record":
                records = records[:-1]  # RocketMQ keeps it, we do not: see tests/store/test_commit_log.py
            judges[name] = Judge(records)
        return judges[name]

    return get
