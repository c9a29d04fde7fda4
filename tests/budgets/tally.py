"""Requests, by kind and by what they are about; and what may be spent of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from buquet.store.driver import Operation

FREE = frozenset({"delete", "delete_many"})
"""Stores do not charge for these."""

KINDS = {
    Operation.GET: "get",
    Operation.HEAD: "head",
    Operation.LIST: "list",
    Operation.CREATE: "put",
    Operation.REPLACE: "put",
    Operation.PUT: "put",
    Operation.DELETE: "delete",
    Operation.DELETE_MANY: "delete_many",
    Operation.CREATE_BUCKET: "create_bucket",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured, and the most that it may be; None if nothing was promised."""

    name: str
    value: float
    budget: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether it is within the budget."""
        return self.budget is None or self.value <= self.budget

    def __str__(self) -> str:
        budget = "" if self.budget is None else f"<= {self.budget:g}"
        return f"{self.name:<76} {self.value:>8.3f}  {budget}{'' if self.is_met else '  MISSED'}"


@dataclass(frozen=True, slots=True)
class Tally:
    """What was sent for some tasks: counts of (kind, the first segment of the key)."""

    counts: Counter[tuple[str, str]]
    tasks: int

    @classmethod
    def of(cls, requests: Iterable[tuple[str, str]], tasks: int, *, prefix: str = "") -> Tally:
        """Count (kind, key) pairs of a queue under a prefix."""
        mine = ((kind, key.removeprefix(prefix)) for kind, key in requests if key.startswith(prefix))
        return cls(Counter((kind, key.partition("/")[0]) for kind, key in mine), tasks)

    def a_task(self, *kinds: str, about: str | None = None) -> float:
        """Requests of these kinds for each task."""
        chosen = (count for (kind, of), count in self.counts.items() if kind in kinds and about in {None, of})
        return sum(chosen) / self.tasks

    @property
    def any_a_task(self) -> float:
        """Requests for each task, whatever their kind."""
        return self.counts.total() / self.tasks

    @property
    def billed_a_task(self) -> float:
        """Requests for each task that a store charges for."""
        return self.any_a_task - self.a_task(*FREE)

    @property
    def rest_a_task(self) -> float:
        """Billed requests for each task but for the reads and writes of tasks and markers."""
        of_tasks = sum(self.a_task("get", "put", about=about) for about in ("tasks", "ready"))
        return self.billed_a_task - of_tasks
