"""A process that builds: ``python builder.py '{"store": ..., "master": ..., "marks": ..., "fault": ...}'``.

Around each task is a Marked, which leaves word of where it ran, and may let it fail. Prints what was built.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent.parent / "src"))

from tests.spark.tasks import Place, place
from whence.door import build_store
from whence.pipeline import jobs
from whence.pipeline.runner import Runner
from whence.pipeline.session import SparkSettings

SLOW_S = 4.0


@dataclass(frozen=True)
class Marked:
    """A task that tells where it ran. The first of each job that gets to it has the fault."""

    name: str
    task: Callable[[Any], Any]
    marks: str
    fault: str

    def __call__(self, given: Any) -> Any:
        here = place()
        time.sleep(0.02)  # so that no worker takes all tasks
        Path(self.marks, f"{self.name}-{os.urandom(8).hex()}").write_text(json.dumps(asdict(here)))
        if not self.fault or not self._is_first():
            return self.task(given)
        if self.fault == "slow":
            time.sleep(SLOW_S)
        made = self.task(given)  # all of it, or as much as gets done, is left behind
        if self.fault == "killed executor":
            os.kill(here.java, signal.SIGKILL)
            time.sleep(60)
        if self.fault == "killed worker":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "error":
            raise OSError(5, "the network disk is gone for a moment")
        return made

    def _is_first(self) -> bool:
        try:
            Path(self.marks, f"first-{self.name}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def places(marks: Path) -> list[Place]:
    """Where tasks ran."""
    return [Place(**json.loads(mark.read_text())) for mark in marks.glob("*-*") if mark.read_text()]


def main(asked: dict[str, Any]) -> None:
    class MarkingRunner(Runner):
        def map(self, name: str, task: Any, inputs: Sequence[Any], *, size_of: Any = None) -> list[Any]:
            # By the name under which the workers import it.
            from tests.spark.builder import Marked

            return super().map(
                name, Marked(name, task, asked["marks"], asked.get("fault", "")), inputs, size_of=size_of
            )

    jobs.Runner = MarkingRunner  # type: ignore[attr-defined]
    spark = SparkSettings(asked["master"], asked.get("conf", {}))
    built = build_store(asked["store"], jobs=asked.get("jobs"), with_sums=True, spark=spark)
    print(json.dumps(built.to_dict()))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
