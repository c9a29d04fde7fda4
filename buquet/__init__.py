"""buquet: a distributed task queue whose only backend is S3.

Example::

    from buquet import connect

    queue = await connect(endpoint="http://localhost:8333", bucket="tasks")
    task = await queue.submit("send_email", {"to": "user@example.com"})

Names are imported when they are first used, so that `import buquet` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from buquet.audit import Fault, Finding, Report
    from buquet.connection import connect
    from buquet.errors import (
        BuquetError,
        InvalidInput,
        InvalidInputType,
        OutcomeUnknown,
        PermanentError,
        RetryableError,
        StoreError,
        Unavailable,
        UnfitStore,
    )
    from buquet.monitor import Monitor
    from buquet.protocol.retry_policy import RetryPolicy
    from buquet.protocol.schedule import Schedule, ScheduleLastRun
    from buquet.protocol.task import Task, TaskStatus
    from buquet.queue import Queue
    from buquet.scheduler import Scheduler
    from buquet.submissions import NewTask, Submitted
    from buquet.worker import TaskContext, Worker, WorkerRunOptions

__version__ = "0.1.0"

_HOMES = {
    "connect": "buquet.connection",
    "Queue": "buquet.queue",
    "Fault": "buquet.audit",
    "Finding": "buquet.audit",
    "Report": "buquet.audit",
    "Monitor": "buquet.monitor",
    "NewTask": "buquet.submissions",
    "Submitted": "buquet.submissions",
    "RetryPolicy": "buquet.protocol.retry_policy",
    "Schedule": "buquet.protocol.schedule",
    "ScheduleLastRun": "buquet.protocol.schedule",
    "Scheduler": "buquet.scheduler",
    "Task": "buquet.protocol.task",
    "TaskStatus": "buquet.protocol.task",
    "TaskContext": "buquet.worker",
    "Worker": "buquet.worker",
    "WorkerRunOptions": "buquet.worker",
    "BuquetError": "buquet.errors",
    "InvalidInput": "buquet.errors",
    "InvalidInputType": "buquet.errors",
    "OutcomeUnknown": "buquet.errors",
    "PermanentError": "buquet.errors",
    "RetryableError": "buquet.errors",
    "StoreError": "buquet.errors",
    "Unavailable": "buquet.errors",
    "UnfitStore": "buquet.errors",
}

__all__ = [
    "BuquetError",
    "Fault",
    "Finding",
    "InvalidInput",
    "InvalidInputType",
    "Monitor",
    "NewTask",
    "OutcomeUnknown",
    "PermanentError",
    "Queue",
    "Report",
    "RetryPolicy",
    "RetryableError",
    "Schedule",
    "ScheduleLastRun",
    "Scheduler",
    "StoreError",
    "Submitted",
    "Task",
    "TaskContext",
    "TaskStatus",
    "Unavailable",
    "UnfitStore",
    "Worker",
    "WorkerRunOptions",
    "connect",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'buquet' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
