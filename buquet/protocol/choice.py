"""Which of the due markers a worker tries, and when (rule 7).

Every worker orders the same page differently, and a fresh task is tried by about two of them;
the longer it waits, the more workers try it.

Example::

    delay_s = patience_s(fraction("worker-1", task_id), workers=64)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice

from buquet._core.shard import xxh64

DOUBLING_S = 0.25
"""A waiting task is tried by twice as many workers every so often."""

TRIERS = 2
"""How many workers try a fresh task, on average."""


def fraction(worker_id: str, task_id: str) -> float:
    """Hash a worker and a task to a number in [0, 1)."""
    return xxh64(f"{worker_id}/{task_id}".encode()) / 2**64


def is_nearest(share: float, task_id: str, rivals: Iterable[str], *, but_for: int = 0) -> bool:
    """Whether none of the other workers, or no more than `but_for`, has a smaller fraction of a task.

    Parameters
    ----------
    share:
        This worker's `fraction` of it.
    task_id:
        The task.
    rivals:
        The other workers.
    but_for:
        So many of them may be nearer.
    """
    nearer = (rival for rival in rivals if fraction(rival, task_id) < share)
    return next(islice(nearer, but_for, None), None) is None


def nearest(task_id: str, workers: Iterable[str]) -> float:
    """Return the smallest fraction that one of these workers has of a task."""
    return min(fraction(worker, task_id) for worker in workers)


def patience_s(share: float, *, workers: int) -> float:
    """How old a task must be before a worker tries it, seconds.

    The rule is `share < (2 / workers) * 2 ** (age / 0.25 s)`, solved for the age.

    Parameters
    ----------
    share:
        `fraction` of worker and task.
    workers:
        How many sessions live.
    """
    at_once = TRIERS / workers
    return 0.0 if share < at_once else DOUBLING_S * math.log2(share / at_once)
