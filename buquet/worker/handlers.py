"""Handlers: the functions that do a task's work, and how each kind of them is called.

A handler is any callable of `input` or of `input, ctx`, `async def` or plain; a plain one runs
in a daemon thread of its own, which no time-out can stop.

Example::

    handler = Handler(send_email)
    result = await handler.start({"to": "user@example.com"}, ctx, name="mail", on_end=lambda: None)
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

from buquet.errors import BuquetError, PermanentError
from buquet.worker.context import TaskContext


class HandlerExit(BuquetError):  # noqa: N818 - it reports an exit, which is no error of ours
    """A handler raised SystemExit, KeyboardInterrupt or the like; the cause is attached."""


class Handler:
    """One registered handler.

    Parameters
    ----------
    function:
        The callable.

    Raises
    ------
    TypeError
        It is not callable, or takes neither `input` nor `input, ctx`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"a handler must be callable, not {type(function).__name__}")
        self.function = function
        self.is_async = _is_async(function)
        self.takes_context, self._pass = _passer(function)

    def start(
        self, value: Any, context: TaskContext | None, *, name: str, on_end: Callable[[], None]
    ) -> asyncio.Future[Any]:
        """Start the handler. Cancelling the future stops it only if the handler is async.

        Parameters
        ----------
        value, context:
            What it is called with; the context may be left out if it takes none.
        name:
            What its thread is called.
        on_end:
            Called when it has ended, a turn of the loop before the callbacks of the future.
        """
        call = self._pass(value, context)
        if self.is_async:
            return asyncio.create_task(_guarded(call, on_end))
        return _in_thread(call, on_end, name=f"buquet-{name}")


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the method itself is wanted
    )


_Passer = Callable[[Any, TaskContext | None], Callable[[], Any]]


def _passer(function: Callable[..., Any]) -> tuple[bool, _Passer]:
    """Decide once how a call gets its arguments, and whether the context is one of them."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # builtins without a signature
        return False, lambda value, _context: functools.partial(function, value)
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = next((p for p in parameters if p.name == "ctx"), None)
    takes_context = True
    if named is not None and named.kind is named.KEYWORD_ONLY:
        passer = lambda value, context: functools.partial(function, value, ctx=context)  # noqa: E731
        example: tuple[tuple[object, ...], dict[str, object]] = ((None,), {"ctx": None})
    elif len(positional) > 1 and (positional[1].default is inspect.Parameter.empty or positional[1] is named):
        passer = lambda value, context: functools.partial(function, value, context)  # noqa: E731
        example = ((None, None), {})
    else:
        takes_context = False
        passer = lambda value, _context: functools.partial(function, value)  # noqa: E731
        example = ((None,), {})
    try:
        signature.bind(*example[0], **example[1])
    except TypeError as error:
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"handler {name} must take `input` or `input, ctx`: {error}") from error
    return takes_context, passer


_inside = contextvars.ContextVar("buquet_inside_handler", default=False)


def inside_handler() -> bool:
    """Whether the caller is a handler, or was started by one."""
    return _inside.get()


async def _guarded(call: Callable[[], Any], on_end: Callable[[], None]) -> Any:
    _inside.set(True)
    # An exit that leaves a coroutine would stop the whole event loop.
    try:
        return await call()
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise HandlerExit(described(error)) from error
    finally:
        on_end()


def described(error: BaseException) -> str:
    """Return an error as `Type: text`, whatever its own methods do."""
    try:
        name = type(error).__name__
    except BaseException:  # noqa: BLE001 - it is the handler's own error that cannot be printed
        name = "Error"
    try:
        return f"{name}: {error}"
    except BaseException:  # noqa: BLE001
        return f"{name}: its text cannot be printed"


def _not_awaitable(result: Any) -> Any:
    """Refuse what a handler meant to await."""
    if inspect.iscoroutine(result):
        result.close()
        raise PermanentError("the handler returned a coroutine: declare it with `async def`, or await it")
    return result


def _in_thread(call: Callable[[], Any], on_end: Callable[[], None], *, name: str) -> asyncio.Future[Any]:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def report(result: Any, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)
        on_end()

    def run() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = _not_awaitable(call())
        except StopIteration as raised:  # no future can hold one, no coroutine can raise one
            error = RuntimeError("the handler raised StopIteration")
            error.__cause__ = raised
        except Exception as raised:  # noqa: BLE001 - whatever it is, it is the attempt's outcome
            error = raised
        except BaseException as raised:  # noqa: BLE001
            error = HandlerExit(described(raised))
            error.__cause__ = raised
        try:
            loop.call_soon_threadsafe(report, result, error)
        except RuntimeError:
            pass  # the loop was closed while the handler went on: nobody waits any more

    context = contextvars.copy_context()
    context.run(_inside.set, True)  # noqa: FBT003 - it is the variable's value
    threading.Thread(target=context.run, args=(run,), name=name, daemon=True).start()
    return done
