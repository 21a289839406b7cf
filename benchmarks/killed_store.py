"""Makes a store and is killed in the middle of it: ``python -m benchmarks.killed_store STORE FILE_SIZE SLOTS ITEMS``.

Four full log files and half of one; messages with bodies of 300 bytes in 8 topics of 4 queues, each with two keys and
a tag. The process ends by SIGKILL as soon as that much is appended.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

import whence

FILES = 4.5
BATCH = 4096
TOPIC_COUNT = 8
QUEUE_COUNT = 4


def write_store(
    folder: Path,
    size: int,
    file_size: int,
    slots: int | None = None,
    items: int | None = None,
    topic_count: int = TOPIC_COUNT,
) -> whence.WritableStore:
    """A store whose log has so many bytes at least; it is open."""
    rng = np.random.default_rng(1)
    bodies = [rng.bytes(300) for _ in range(BATCH)]
    offset = number = 0
    store = whence.create(folder, flush="async", file_size=file_size, slots=slots, items=items)
    while offset < size:
        keys = [[f"order-{i:010}", f"customer-{i % 99_991}"] for i in range(number, number + BATCH)]
        batch = number // BATCH
        topic, queue = f"Order-Events_{batch % topic_count}", batch // topic_count % QUEUE_COUNT
        result = store.append_batch(topic, bodies, keys=keys, tags="TagA", queue=queue)
        assert result.status == "PUT_OK", result
        offset = int(result.physical_offsets[-1])
        number += BATCH
    return store


def write(folder: Path, file_size: int, slots: int, items: int) -> None:
    write_store(folder, int(FILES * file_size), file_size, slots, items)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
