"""Kernels of ConsumeQueues beside plain Python."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests import reference
from whence.kernels.queues import DELAYS_MS, NO_QUEUE, QUEUE, set_delivery_times
from whence.kernels.scan import SCANNED

BASE = 3 << 30
I64 = st.integers(-(2**63), 2**63 - 1)
QUEUES = st.lists(st.booleans(), min_size=1, max_size=5)  # whether each one is delayed


def scanned(**columns: list[int]) -> np.ndarray:
    messages = np.zeros(len(next(iter(columns.values()))), SCANNED)
    for name, values in columns.items():
        messages[name] = np.array(values, messages.dtype[name])
    return messages


def queues_of(owners: list[int], is_delayed: list[bool] | None = None) -> np.ndarray:
    queues = np.zeros(len(owners), QUEUE)
    queues["owner"] = owners
    queues["is_delayed"] = is_delayed or 0
    return queues


# Levels as they are written, and as no broker writes them.
LEVELS = (
    st.integers(-5, 25).map(str)
    | st.sampled_from(
        ["", "+", "-", "+3", "-3", "03", "1x", " 1", "1 ", "18", "19", "2147483647", "2147483648", "9" * 30]
    )
    | st.text("0123456789+-x", max_size=6)
)


@given(is_delayed=QUEUES, data=st.data())
def test_delivery_times_equal_the_twin(is_delayed, data):
    rows = data.draw(
        st.lists(
            st.tuples(st.integers(-1, len(is_delayed) - 1), LEVELS, st.integers(-(2**40), 2**40), I64), max_size=20
        )
    )
    log = b"".join(b"??" + level.encode() for _, level, _, _ in rows) + b"\0" * 8
    ends = np.cumsum([2 + len(level) for _, level, _, _ in rows]).tolist()
    messages = scanned(
        physical_offset=[BASE + end - len(level) - 2 for end, (_, level, _, _) in zip(ends, rows, strict=True)],
        delay_level_at=[2] * len(rows),
        delay_level_size=[len(level) for _, level, _, _ in rows],
        store_timestamp_ms=[time for _, _, time, _ in rows],
        tags_code=[code for *_, code in rows],
    )
    numbers = np.array([number for number, *_ in rows], np.int32)
    queues = queues_of(list(range(len(is_delayed))), is_delayed)
    before = messages.copy()
    set_delivery_times(np.frombuffer(log, np.uint8), BASE, messages, numbers, queues)
    expected = [
        reference.delivery_time(level, time, code) if number != NO_QUEUE and is_delayed[number] else code
        for number, level, time, code in rows
    ]
    assert messages["tags_code"].tolist() == expected
    messages["tags_code"] = before["tags_code"]
    assert messages.tobytes() == before.tobytes()  # nothing else is touched


def test_levels_wait_as_long_as_rocketmqs_default_says():
    text = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"  # messageDelayLevel
    units = {"s": 1000, "m": 60_000, "h": 3_600_000}
    assert DELAYS_MS.tolist() == [int(level[:-1]) * units[level[-1]] for level in text.split()]
