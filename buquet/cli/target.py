"""Finds the worker that `buquet worker MODULE:WORKER` names.

Example::

    worker = await load_worker("tasks:worker", queue)

Errors: `click.UsageError`, which says what was not found, and what there is.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from types import ModuleType
from typing import Any

import click

from buquet.queue import Queue
from buquet.worker import Worker


async def load_worker(target: str, queue: Queue) -> Worker:
    """Import the module and return its worker, made from the queue if it is a function.

    Parameters
    ----------
    target:
        `MODULE:WORKER`, or a module with one worker in it.
    queue:
        The queue, for a function that makes a worker.
    """
    module_name, _, name = target.partition(":")
    module = _imported(module_name)
    found = getattr(module, name, None) if name else _only_worker(module)
    if name and found is None:
        raise click.UsageError(f"the module {module_name!r} has no {name!r}{_there_is(module)}")
    if not isinstance(found, Worker) and callable(found):
        found = await _made(found, target, queue)
    if not isinstance(found, Worker):
        raise click.UsageError(
            f"{target} is of type {type(found).__name__}: name a Worker, or a function that makes one from"
            f" a queue{_there_is(module)}"
        )
    if not found.task_types:
        raise click.UsageError(f'{target} handles no task type: decorate a function with @worker.task("...")')
    return found


def _imported(name: str) -> ModuleType:
    folder = os.getcwd()  # noqa: PTH109 - as sys.path has it
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise click.UsageError(
                f"there is no module {name!r}: write MODULE:WORKER, in the folder that has the module,"
                " or install it"
            ) from error
        raise click.UsageError(f"importing {name} failed{_at(error)}") from error
    except Exception as error:  # the user's module may raise anything
        raise click.UsageError(f"importing {name} failed{_at(error)}") from error


def _at(error: BaseException) -> str:
    """Say what was raised, and in which line of the user's code."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename
    ]
    where = f" in {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    return f"{where}: {type(error).__name__}: {error}"


def _only_worker(module: ModuleType) -> Worker:
    workers = _workers(module)
    if len(workers) != 1:
        raise click.UsageError(
            f"say which worker of {module.__name__!r}: {module.__name__}:NAME{_there_is(module)}"
        )
    worker: Worker = getattr(module, workers[0])
    return worker


def _workers(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, Worker)]


def _there_is(module: ModuleType) -> str:
    workers = _workers(module)
    return f"; it has {', '.join(workers)}" if workers else "; it has no Worker at its top level"


async def _made(function: Any, target: str, queue: Queue) -> Any:
    try:
        made = function(queue)
        return await made if inspect.isawaitable(made) else made
    except TypeError as error:
        raise click.UsageError(f"{target} could not make a worker from a queue{_at(error)}") from error
