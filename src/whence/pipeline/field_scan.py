"""``--field --scan``: no index is trusted; expressions of fields are evaluated for the whole log, on Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from whence.lookup.field_search import Evaluate, FieldScan
from whence.pipeline.field_evaluation import Definition, Evaluator
from whence.pipeline.runner import Runner, Watcher
from whence.pipeline.scanning import walk_log
from whence.pipeline.session import SparkSettings, open_session
from whence.store.damage import Damage
from whence.store.message_columns import BODY_DAMAGE_MAX
from whence.store.message_store import MessageStore
from whence.store.stretch_rows import proven_stretches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def open_field_scan(
    settings: SparkSettings | None, *, log_file: Path | None = None, watcher: Watcher | None = None
) -> Iterator[Evaluate]:
    """Who evaluates fields, for the ``with``."""
    with open_session(settings, log_file=log_file, moves_rows=True) as spark:
        yield scans_fields(spark, Runner(spark, watcher))


def scans_fields(spark: SparkSession, runner: Runner) -> Evaluate:
    """Who evaluates fields on a session that is open."""
    evaluator = Evaluator(spark, runner)

    def evaluate(store: MessageStore, fields: Sequence[tuple[str, str]], begin: int, end: int) -> FieldScan:
        return scan_fields(store, fields, begin, end, evaluator, runner)

    return evaluate


def scan_fields(
    store: MessageStore, fields: Sequence[tuple[str, str]], begin: int, end: int, evaluator: Evaluator, runner: Runner
) -> FieldScan:
    """The messages between two offsets, where records begin, whose fields have these values."""
    groups: dict[tuple[str, bool], list[tuple[Definition, str]]] = defaultdict(list)
    for name, value in fields:
        noted = store.field(name).claim
        groups[noted.session_zone, noted.ansi].append((Definition.noted(name, noted), value))
    log = store.commit_log
    taken = walk_log(log, begin, end, runner, None) if begin < end else ()
    stretches = proven_stretches(log, taken)
    damage: list[Damage] = [each for spilled in taken for each in spilled.damage]
    bases = {stretch.path: stretch.base for stretch in stretches}
    found, possible, bad = [], [], set()
    for group in groups.values():
        definitions, values = zip(*group, strict=True)
        matching = evaluator.matching(definitions, values, stretches)
        unknown = [bases[each.path] + each.position for each in matching.damage]
        found.append(matching.offsets)
        possible.append(np.union1d(matching.offsets, np.array(unknown, np.int64)))
        bad.update(unknown)
        damage += matching.damage
    # A task tells so many at most. Where they are fewer altogether, that is all of them.
    are_all = len(bad) < BODY_DAMAGE_MAX
    undecided = [offset for offset in reduce(np.intersect1d, possible).tolist() if offset in bad]
    return FieldScan(reduce(np.intersect1d, found).tolist(), damage, undecided if are_all else None)
