"""What a handler may ask about the attempt it runs: `TaskContext`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from buquet.protocol.task import Task


@dataclass(frozen=True, slots=True)
class TaskContext:
    """Passed to handlers that take a second argument.

    Parameters
    ----------
    task_id:
        The task's id: the same for all its attempts, a good idempotency key.
    attempt:
        Which claim this is, counted from 1.
    task:
        The task as it was claimed.
    lease_expires_at:
        When somebody else may take the task over.
    """

    task_id: str
    attempt: int
    task: Task
    lease_expires_at: datetime
