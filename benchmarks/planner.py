"""The plan of a build of a petabyte: a million stretches, which the driver cuts, joins and shares out. No Spark.

Nothing is scanned: what the tasks would have found is made up, as a log of 550-byte messages with two items each. A
process of its own for each round, so that its memory is that of the plan alone.
"""

from __future__ import annotations

import json
import pickle
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from benchmarks.harness import Comparison, Options, Peer, Result, Sample, measure
from whence.files.names import offset_name
from whence.pipeline.plan import LogFilePlace, cut_log, join_stretches, plan_index, stretch_size
from whence.store.log_file import HEAD_SIZE
from whence.store.spill import Spilled, Stretch

FILE_SIZE = 1 << 30
FILES = 1 << 20
SLOTS = 4000
MESSAGES = FILE_SIZE // 550
ITEMS = 2 * MESSAGES
Made = TypeVar("Made")

CAPACITY = 20_000_000 - 1
STEPS = ("cut", "join", "plan")


def results(options: Options) -> Iterator[Result]:
    count = FILES >> 6 if options.is_small else FILES
    run = simulation(count)
    for step in STEPS:

        def sample(round_number: int, step: str = step) -> Sample:
            wall, cpu, check = run(round_number)[step]
            return Sample(wall, cpu, check)

        result = measure(Comparison("", [Peer("whence", sample)], None, count, "stretch"), options)
        told = run(options.warm_up)
        yield replace(result, comparison=replace(result.comparison, work=text(step, count, told)))


def text(step: str, count: int, told: dict[str, list[Any]]) -> str:
    words = {
        "cut": f"cut {count:,} files of 1 GiB into stretches",
        "join": "join them",
        "plan": f"plan {told['plan'][2]:,.0f} index files",
    }
    return f"{words[step]}, memory up to {told['memory'][STEPS.index(step)] / 1e9:.2f} GB"


def simulation(count: int) -> Callable[[int], dict[str, list[Any]]]:
    @cache  # one process serves all steps of a round
    def run(round_number: int) -> dict[str, list[Any]]:
        command = [sys.executable, "-m", "benchmarks.planner", str(count)]
        told = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        rows: dict[str, list[Any]] = json.loads(told)
        return rows

    return run


def found(stretch: Stretch) -> Spilled:
    """What a task would tell of a whole file."""
    return Spilled(
        name=f"{stretch.number:08d}-{stretch.number:016x}",
        begin_offset=stretch.from_offset,
        end_offset=stretch.to_offset,
        message_count=MESSAGES,
        item_count=ITEMS,
        last_offset=stretch.to_offset - 550,
        last_head="00" * HEAD_SIZE,
        ends_bare=False,
        is_log_end=stretch.is_last,
        damage=(),
        holes=(),
        machine="01234567-0123-0123-0123-0123456789ab",
    )


def main(count: int) -> None:
    told: dict[str, list[Any]] = {"memory": []}

    def step(name: str, work: Callable[[], list[Made]]) -> list[Made]:
        cpu, wall = time.process_time(), time.perf_counter()
        done = work()
        told[name] = [time.perf_counter() - wall, time.process_time() - cpu, len(done)]
        told["memory"].append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        return done

    files = [
        LogFilePlace(f"/mnt/store/commitlog/{offset_name(n * FILE_SIZE)}", n * FILE_SIZE, FILE_SIZE)
        for n in range(count)
    ]
    size = stretch_size(count * FILE_SIZE, SLOTS, None)
    stretches = step("cut", lambda: cut_log(files, 0, size))
    spilled = {stretch.number: found(stretch) for stretch in stretches}
    taken = step("join", lambda: list(join_stretches(stretches, spilled).taken))
    assert len(taken) == len(stretches) == count
    plans = step("plan", lambda: plan_index(taken, CAPACITY, 0))
    assert sum(part.count for plan in plans for part in plan.ranges) == count * ITEMS
    told["bytes"] = [len(pickle.dumps(rows[-1])) for rows in (stretches, taken, plans)]
    print(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]))
