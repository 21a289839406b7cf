"""Threads that append side by side, a store that is closed under them, and Ctrl-C at any point of an append."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from random import Random

import pytest

import whence
from tests.crash.checks import check_answers, check_derived, check_log
from tests.crash.workload import Acknowledged, Sizes, Workload
from tests.disks import UnflushedDisk
from whence.errors import StoreError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("small_batch_queues"),
    pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning"),
]

SIZES = Sizes(16_384, 400, 31, 100)
THREADS = 8
MODES = ["async", "sync"]


@pytest.mark.parametrize("flush", MODES)
def test_what_threads_were_acknowledged_before_the_store_closed_is_there(tmp_path, flush):
    store = whence.create(tmp_path / "store", flush=flush, **SIZES.arguments())
    acknowledged: list[Acknowledged] = []
    told: list[str] = []

    def append(number: int) -> None:
        workload = Workload(Random(number), 100_000 * number)
        failures: list[str] = []
        while not failures:
            more, failures = workload.put_some(store)
            acknowledged.extend(more)
        told.extend(failures)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    store.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert told == ["SERVICE_NOT_AVAILABLE: the store is closed"] * THREADS
    records = check_log(tmp_path / "store", acknowledged)
    check_derived(tmp_path / "store", SIZES, tmp_path / "anew")
    with whence.open(tmp_path / "store") as reader:
        check_answers(reader, records, Random(1), keys_asked=20)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All kernels are loaded: Numba's own locks do not survive an exception at any point."""
    workload = Workload(Random(1))
    with whence.create(tmp_path_factory.mktemp("kernels"), disk=UnflushedDisk(), **SIZES.arguments()) as store:
        for _ in range(60):
            workload.put_some(store)


class Interrupted(Exception):
    """As KeyboardInterrupt comes: between any two steps of the interpreter."""


def interrupt(*_: object) -> None:
    raise Interrupted


def close_in_time(store: whence.WritableStore) -> None:
    """A lock that an interrupted thread left locked would be waited for without end."""
    raised: list[BaseException] = []

    def close() -> None:
        try:
            store.close()
        except StoreError as error:
            raised.append(error)

    thread = threading.Thread(target=close, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "the store cannot be closed"
    for error in raised:
        raise error


# One that comes in a callback of the interpreter's own is told and forgotten: that, too, is an interrupt.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("flush", MODES)
@pytest.mark.parametrize("seed", range(10))
def test_an_append_that_is_interrupted_spoils_nothing(tmp_path: Path, flush: str, seed: int):
    """The store goes on, or says that it has to be opened again; no queue offset is given twice or left out."""
    random = Random(seed)
    workload = Workload(random)
    acknowledged: list[Acknowledged] = []
    before = signal.signal(signal.SIGALRM, interrupt)
    store = whence.create(
        tmp_path / "store", flush=flush, disk=UnflushedDisk(), flush_timeout_s=2.0, **SIZES.arguments()
    )
    told: list[str] = []
    try:
        for _ in range(200):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + random.random() * random.choice([0.0005, 0.005]))
                try:
                    more, told = workload.put_some(store)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                acknowledged += more
            except Interrupted:
                pass
    finally:
        signal.signal(signal.SIGALRM, before)
    for _ in range(3):
        more, told = workload.put_some(store)
        acknowledged += more
        assert not told or "interrupted" in told[0], told
    if told:
        with pytest.raises(StoreError, match="open the store again"):
            close_in_time(store)
    else:
        close_in_time(store)
    with whence.create(tmp_path / "store", flush=flush, disk=UnflushedDisk(), **SIZES.arguments()) as store:
        assert store.wait_dispatched(60)
        check_answers(store, check_log(tmp_path / "store", acknowledged), random, keys_asked=20)
    check_derived(tmp_path / "store", SIZES, tmp_path / "anew")
