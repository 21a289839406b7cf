"""Golden stores, opened for reading once a session."""

from collections.abc import Callable, Iterator

import pytest

from tests.golden import GoldenStore
from whence.store import log_file
from whence.store.message_store import MessageStore


@pytest.fixture(scope="session")
def opened(golden: Callable[[str], GoldenStore]) -> Iterator[Callable[[str], MessageStore]]:
    """``opened(name)`` is the MessageStore of a golden set."""
    stores: dict[str, MessageStore] = {}

    def get(name: str) -> MessageStore:
        if name not in stores:
            stores[name] = MessageStore(golden(name).store)
        return stores[name]

    yield get
    for store in stores.values():
        store.close()


@pytest.fixture(params=["plain", "kernel"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to scan: plain Python, which short logs take, and the kernel from the first byte on."""
    if request.param == "kernel":
        monkeypatch.setattr(log_file, "PLAIN_SCAN_MAX", 0)
