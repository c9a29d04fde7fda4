"""The worker: finds due tasks, claims them, runs their handlers and writes what came of it."""

from buquet.worker.context import TaskContext
from buquet.worker.options import WorkerRunOptions
from buquet.worker.worker import Worker

__all__ = ["TaskContext", "Worker", "WorkerRunOptions"]
