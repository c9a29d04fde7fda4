"""Checks of what a caller passes; the errors name the argument.

Errors: `InvalidInput` for a value, `InvalidInputType` for a type.

Example::

    check_integer("max_retries", max_retries, least=0, most=MAX_RETRIES)
"""

from __future__ import annotations

from buquet._core import ident
from buquet.errors import InvalidInput, InvalidInputType

MAX_TASK_TYPE_CHARS = 200
MAX_TIMEOUT_SECONDS = 30 * 24 * 3600
MAX_RETRIES = 10_000


def check_task_type(task_type: str) -> None:
    """Raise unless `task_type` is 1 to 200 printable characters."""
    check_text("task_type", task_type, most=MAX_TASK_TYPE_CHARS)


def check_timeout_seconds(timeout_seconds: float) -> None:
    """Raise unless `timeout_seconds` is above 0 and at most 30 days."""
    check_number("timeout_seconds", timeout_seconds, least=0.001, most=MAX_TIMEOUT_SECONDS)


def check_max_retries(max_retries: int) -> None:
    """Raise unless `max_retries` is 0 to 10,000."""
    check_integer("max_retries", max_retries, least=0, most=MAX_RETRIES)


def check_task_id(task_id: str) -> None:
    """Raise unless `task_id` is an id as `Task.id` has it."""
    if not isinstance(task_id, str):
        raise InvalidInputType(f"task_id must be a string such as `task.id`, not {type(task_id).__name__}")
    try:
        ident.parse(task_id)
    except ValueError as error:
        raise InvalidInput(str(error)) from None


def check_text(name: str, value: str, *, most: int) -> None:
    """Raise unless a value is 1 to `most` printable characters, not all of them spaces."""
    if not isinstance(value, str):
        raise InvalidInputType(f"{name} must be a string, not {type(value).__name__}")
    if not value.strip() or len(value) > most:
        raise InvalidInput(f"{name} must have 1 to {most} characters, not {len(value)}")
    if not value.isprintable():
        raise InvalidInput(f"{name} must be printable text")


def check_number(name: str, value: float, *, least: float, most: float) -> None:
    """Raise unless a value is a number in a range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInputType(f"{name} must be a number, not {type(value).__name__}")
    if not least <= value <= most:  # also true of NaN
        raise InvalidInput(f"{name} must be between {least} and {most}, not {value}")


def check_integer(name: str, value: int, *, least: int, most: int) -> None:
    """Raise unless a value is an integer in a range."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInputType(f"{name} must be an integer, not {type(value).__name__}")
    if not least <= value <= most:
        raise InvalidInput(f"{name} must be between {least} and {most}, not {value}")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise unless a value is one of the choices."""
    if value not in choices:
        raise InvalidInput(f"{name} must be one of {', '.join(choices)}, not {value!r}")
