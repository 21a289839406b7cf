"""The one way to measure: peers take turns, and a table says what each took and whether the claim holds.

    A B C  A B C  A B C ...     a few rounds to warm up, then those that count

A machine is never quite calm. Peers that take turns meet the same weather, so the ratio of their medians is worth
more than either of them. Beside it stand the best round, the spread from best to worst, and the CPU time of the
process, which shows what waited and what ran on more than one core.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import numpy as np

Prepared = TypeVar("Prepared")


@dataclass(frozen=True)
class Options:
    """How to measure. ``is_small`` is a rehearsal: little data, to see that all runs; its numbers mean nothing.

    ``only``: only comparisons whose work is called so, in part. ``fetch_mib``: memory that is touched before each
    peer's turn.
    """

    rounds: int = 7
    warm_up: int = 4
    is_small: bool = False
    with_java: bool = True
    only: str = ""
    fetch_mib: int = 0

    def wants(self, work: str) -> bool:
        """Whether this work is to be measured."""
        return self.only in work


@dataclass(frozen=True)
class Sample:
    """One round of one peer. ``check`` is a number that comes out of the work: equal for all peers of a round."""

    wall_s: float
    cpu_s: float
    check: int = 0


@dataclass(frozen=True)
class Peer:
    """Who does the work; ``run`` gets the number of the round."""

    name: str
    run: Callable[[int], Sample]


ALONE = ("s", "of a core")  # what is measured is the result
LESS = ("times as long", *ALONE)


@dataclass(frozen=True)
class Target:
    """What a claim promises, and what it aims at: a ratio of medians, or a rate or time where there is no peer."""

    at_least: float
    aim: float
    kind: str = "times as fast"  # or "a second", or one of LESS, where less is better

    def reached_by(self, value: float) -> str:
        if self.kind in LESS:
            met, aimed = value <= self.at_least, value <= self.aim
        else:
            met, aimed = value >= self.at_least, value >= self.aim
        return "aim reached" if aimed else "met" if met else "NOT met"

    def __str__(self) -> str:
        bound = "at most" if self.kind in LESS else "at least"
        return f"{bound} {_number(self.at_least)}, aim {_number(self.aim)} {self.kind}"


@dataclass(frozen=True)
class Comparison:
    """The same work by several peers: ours first, beside the last one."""

    work: str
    peers: Sequence[Peer]
    target: Target | None = None
    amount: int = 1  # how many of what a round does, and what one of them is
    unit: str = "round"


@dataclass(frozen=True)
class Result:
    comparison: Comparison
    samples: dict[str, list[Sample]]

    def median_s(self, name: str) -> float:
        return median(sample.wall_s for sample in self.samples[name])

    @property
    def value(self) -> float | None:
        """The rate of ours, or its ratio to the peer; None where there is no peer."""
        peers = self.comparison.peers
        kind = self.comparison.target.kind if self.comparison.target else "times as fast"
        ours = self.median_s(peers[0].name)
        if kind == "a second":
            return self.comparison.amount / ours
        if kind in ALONE:
            return ours
        if len(peers) < 2:
            return None
        beside = self.median_s(peers[-1].name)
        return ours / beside if kind == "times as long" else beside / ours

    @property
    def verdict(self) -> str:
        target, value = self.comparison.target, self.value
        if value is None:
            return "" if target is None else "no peer"
        if target is None:
            return f"{_number(value)}x"
        sign = f" {target.kind}" if target.kind in ("a second", *ALONE) else "x"
        return f"{_number(value)}{sign}: {target.reached_by(value)}"


def timed(
    prepare: Callable[[int], Prepared],
    work: Callable[[Prepared], int],
    finish: Callable[[Prepared], object] = lambda prepared: None,
) -> Callable[[int], Sample]:
    """A peer in this process. ``prepare`` makes the round's input, ``work`` gives the check, ``finish`` cleans up.

    Only ``work`` is timed.
    """

    def run(round_number: int) -> Sample:
        prepared = prepare(round_number)
        cpu, wall = time.process_time(), time.perf_counter()
        check = work(prepared)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        finish(prepared)
        return Sample(wall, cpu, check)

    return run


def measure(comparison: Comparison, options: Options) -> Result:
    """Let the peers take turns. A comparison that is not wanted has no samples."""
    if not options.wants(comparison.work):
        return Result(comparison, {})
    samples: dict[str, list[Sample]] = {peer.name: [] for peer in comparison.peers}
    last = options.warm_up + options.rounds
    for number in range(last):
        progress(f"{comparison.work}: round {number + 1} of {last}")
        checks = {}
        for peer in comparison.peers:
            fetch_memory(options.fetch_mib << 20)
            sample = peer.run(number)
            checks[peer.name] = sample.check
            if number >= options.warm_up:
                samples[peer.name].append(sample)
        if len(set(checks.values())) > 1:
            raise SystemExit(f"{comparison.work}: the peers do not agree in round {number}: {checks}")
    progress("")
    return Result(comparison, samples)


def fetch_memory(size: int) -> None:
    """Touch so much memory, and let go of it.

    A virtual machine may give its host back what has been free for two seconds, as it is after the turn of somebody
    slow. To have it again takes longer than to write to it, which on other machines nobody has to.
    """
    np.ones(size, np.uint8)


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def table(results: Iterable[Result]) -> str:
    """Results as a Markdown table; times are those of one unit."""
    rows = [("work", "peer", "median", "best to worst", "CPU", "result", "target")]
    for result in results:
        comparison = result.comparison
        firsts = [comparison.work, result.verdict, str(comparison.target or "")]
        for peer in comparison.peers:
            walls = [sample.wall_s / comparison.amount for sample in result.samples[peer.name]]
            cpu = median(sample.cpu_s / comparison.amount for sample in result.samples[peer.name])
            spread = f"{_duration(min(walls))} to {_duration(max(walls))}"
            work, verdict, target = firsts
            rows.append((work, peer.name, _duration(median(walls)), spread, _duration(cpu), verdict, target))
            firsts = ["", "", ""]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def as_json(result: Result) -> dict[str, object]:
    comparison, target = result.comparison, result.comparison.target
    return {
        "work": comparison.work,
        "amount": comparison.amount,
        "unit": comparison.unit,
        "value": result.value,
        "target": None if target is None else {"at_least": target.at_least, "aim": target.aim, "kind": target.kind},
        "peers": {
            name: {"wall_s": [s.wall_s for s in samples], "cpu_s": [s.cpu_s for s in samples]}
            for name, samples in result.samples.items()
        },
    }


def _duration(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{_number(seconds * factor)} {unit}"
    return f"{_number(seconds * 1e9)} ns"


def _number(value: float) -> str:
    """Three digits that count, thousands apart."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
