"""TaskRunner: what a job needs of who runs its tasks; on Spark that is :class:`whence.pipeline.runner.Runner`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Input = TypeVar("Input")
Result = TypeVar("Result")


class TaskRunner(Protocol):
    """Runs tasks side by side, ``slots`` of them at once; none for no inputs.

    ``is_local``: on this machine. ``has_twins``: a task may run beside a twin, one that was given up for lost or one
    that is to end sooner.
    """

    slots: int
    is_local: bool
    has_twins: bool

    def map(
        self,
        name: str,
        task: Callable[[Input], Result],
        inputs: Sequence[Input],
        *,
        size_of: Callable[[Input], int] | None = None,
    ) -> list[Result]: ...


class CountedRunner:
    """Has tasks run by another, and counts them."""

    def __init__(self, runner: TaskRunner) -> None:
        self.slots = runner.slots
        self.is_local = runner.is_local
        self.has_twins = runner.has_twins
        self.task_count = 0
        self._runner = runner

    def map(
        self,
        name: str,
        task: Callable[[Input], Result],
        inputs: Sequence[Input],
        *,
        size_of: Callable[[Input], int] | None = None,
    ) -> list[Result]:
        """As the other does."""
        self.task_count += len(inputs)
        return self._runner.map(name, task, inputs, size_of=size_of)
