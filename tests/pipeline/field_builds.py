"""Builds fields without Spark: expressions are plain Python functions, by the name that stands for their SQL."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tests.pipeline.test_build import OneByOne, build
from whence.errors import UsageError
from whence.files.disk import Disk
from whence.formats.rocketmq.message import Message
from whence.pipeline.build import BuiltFields
from whence.pipeline.field_evaluation import Definition, Evaluated
from whence.pipeline.field_failure import FieldError
from whence.pipeline.field_repair import FieldRepair
from whence.pipeline.fields import FieldBuild, FieldSettings
from whence.pipeline.repair import Mended
from whence.pipeline.tasks import own_name
from whence.pipeline.verify import Verified, Verify, VerifyPlace, VerifySettings, work_folder
from whence.store.commit_log import CommitLog
from whence.store.field_spill import FieldSpill, Texts
from whence.store.findings import Finding
from whence.store.sidecar import Sidecar, read_sidecar
from whence.store.spill import Spilled, Stretch
from whence.store.stretch_rows import stretch_rows

Values = Callable[[Message], Iterable[str]]


def words(message: Message) -> list[str]:
    """The words of a body, each once."""
    return list(dict.fromkeys(message.stored_body.decode().split()))


def first_letter(message: Message) -> list[str]:
    return [message.stored_body.decode()[:1]] if message.stored_body else []


EXPRESSIONS: dict[str, Values] = {
    "words": words,
    "first": first_letter,
    "nothing": lambda message: [],
    "many": lambda message: [str(number) for number in range(70_000 if message.keys == ("many",) else 1)],
}


class PlainEvaluator:
    """Evaluates in this process."""

    def __init__(
        self, log: CommitLog, expressions: Mapping[str, Values] = EXPRESSIONS, version: str = "4.0.0"
    ) -> None:
        self.version = version
        self.evaluated: list[tuple[str, int]] = []
        self._log = log
        self._expressions = expressions

    def check(self, definition: Definition) -> None:
        if definition.sql not in self._expressions:
            raise UsageError(f"field {definition.name}: {definition.sql} is refused")

    def evaluate(self, definitions: Sequence[Definition], stretches: Sequence[Stretch], work: Path) -> Evaluated:
        spilled: dict[str, tuple[Spilled, ...]] = {}
        failures: dict[str, FieldError] = {}
        for each in definitions:
            try:
                self.check(each)
                spilled[each.name] = tuple(self._spill(each, stretch, work) for stretch in stretches)
            except UsageError as error:
                failures[each.name] = FieldError(each.name, str(error))
        return Evaluated(spilled, (), failures)

    def _spill(self, definition: Definition, stretch: Stretch, work: Path) -> Spilled:
        self.evaluated.append((definition.name, stretch.from_offset))
        with FieldSpill(work, own_name(definition.name), stretch, Disk(), flush=False) as spill:
            for _, rows in stretch_rows(stretch):
                messages = [self._log.read(int(offset)) for offset in rows["physical_offset"]]
                values = [list(self._expressions[definition.sql](message)) for message in messages]
                counts = np.array([len(each) for each in values], np.int64)
                spill.put(
                    rows,
                    texts([message.topic for message in messages]),
                    counts,
                    texts([value for each in values for value in each]),
                )
            return spill.finish()


def texts(given: Sequence[str]) -> Texts:
    encoded = [text.encode() for text in given]
    ends = np.cumsum([0, *map(len, encoded)])
    data = np.frombuffer(b"".join(encoded) or b"\0", np.uint8)
    return Texts(ends[:-1].astype(np.int64), ends[1:].astype(np.int64), data)


def definition(name: str, sql: str | None = None, zone: str = "UTC", ansi: bool = True) -> Definition:
    return Definition(name, sql or name, zone, ansi)


def build_fields(
    store: Path,
    sidecar: Path,
    *definitions: Definition,
    jobs: int | None = None,
    rebuild: bool = False,
    evaluator: PlainEvaluator | None = None,
    version: str = "4.0.0",
    disk: Disk | None = None,
    grows: bool = False,
    **settings,
) -> BuiltFields:
    """Build the indexes of a store into a sidecar, and then these fields; ``grows``: as a follower does."""
    before = read_sidecar(sidecar)
    build(store, sidecar, fields={} if before is None else before.fields, jobs=jobs, rebuild=rebuild, **settings)
    known = noted(sidecar)
    log = CommitLog(store / "commitlog")
    try:
        how = FieldSettings(settings["shape"], jobs, rebuild, with_sums=True, grows=grows)
        evaluator = evaluator or PlainEvaluator(log, version=version)
        return FieldBuild(log, sidecar, how, known, evaluator, OneByOne(), disk or Disk()).run(definitions)
    finally:
        log.close()


def verify_fields(store: Path, sidecar: Path, *, jobs: int | None = None, **how) -> Verified:
    """What a verify finds of a sidecar; ``how`` is of its evaluator."""
    claim = noted(sidecar)
    log = CommitLog(store / "commitlog")
    place = VerifyPlace(store, sidecar, sidecar, claim.index_names, claim.indexed_to, claim=claim, is_exact=True)
    settings = VerifySettings(claim.shape, claim.dialect, claim.queue_file_size, jobs=jobs)
    try:
        with work_folder(sidecar, is_local=True) as work:
            evaluator = PlainEvaluator(log, **how)
            return Verify(log, place, settings, OneByOne(), work, Disk(), evaluator).run()
    finally:
        log.close()


def repair_fields(
    store: Path, sidecar: Path, found: Verified, *, jobs: int | None = None, **how
) -> tuple[list[Mended], list[Finding]]:
    """Mend what a verify found of fields; and what is left."""
    log = CommitLog(store / "commitlog")
    try:
        repair = FieldRepair(log, sidecar, jobs, PlainEvaluator(log, **how), OneByOne(), Disk())
        return repair.run(found.fields)
    finally:
        log.close()


def noted(sidecar: Path) -> Sidecar:
    """What sidecar.json says, which is there."""
    known = read_sidecar(sidecar)
    assert known is not None
    return known


def field_of(sidecar: Path, name: str) -> dict[str, bytes]:
    """The files of a field, by their place below its folder."""
    folder = sidecar / "fields" / name
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
