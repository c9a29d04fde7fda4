"""Flags that many verbs share: where the queue is, `--json`, durations, moments and JSON values.

Example::

    @click.command(cls=Verb)
    @connected
    @json_flag
    def now(where: Where, as_json: bool) -> None:
        run(where, tell)
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from buquet.config import Settings
    from buquet.connection import Connecting
    from buquet.queue import Queue

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

PLACE = {
    "endpoint": (
        ["S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"],
        "URL of the store, local:PATH, or nothing for Amazon S3.",
    ),
    "bucket": (["S3_BUCKET"], "The bucket."),
    "region": (["S3_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"], "The region."),
    "driver": (["BUQUET_DRIVER"], "The dialect of S3, if the endpoint does not tell."),
    "prefix": (["BUQUET_PREFIX"], "What all keys begin with."),
    "profile": (["AWS_PROFILE"], "A profile of the AWS configuration."),
}
"""The flags that say where the queue is, with their variables and their help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where the queue is, as flags, environment and files say together."""

    endpoint: str | None = None
    bucket: str | None = None
    region: str | None = None
    driver: str | None = None
    prefix: str | None = None
    profile: str | None = None

    def connect(self, *, create_bucket: bool = False, shard_prefix_len: int | None = None) -> Connecting:
        """Return what `buquet.connect()` makes of it."""
        from buquet.connection import connect
        from buquet.errors import ConfigError

        if (self.endpoint or "").startswith("memory:"):
            raise ConfigError("memory: ends with the process, and every task with it: use local:PATH instead")
        return connect(
            self.endpoint,
            self.bucket,
            self.region,
            driver=self.driver,
            prefix=self.prefix or "",
            profile=self.profile,
            create_bucket=create_bucket,
            shard_prefix_len=shard_prefix_len,
        )

    def settings(self) -> Settings:
        """Return it completed and checked; `ConfigError` if something is missing or wrong."""
        from buquet.config import Settings

        return Settings.resolve(
            self.endpoint,
            self.bucket,
            self.region,
            driver=self.driver,
            prefix=self.prefix or "",
            profile=self.profile,
        )


def place(settings: Settings) -> str:
    """Return the address of a queue for people to read."""
    store = settings.endpoint or (f"local:{settings.path}" if settings.path else settings.kind)
    return f"{store}, bucket {settings.bucket}" + (f", prefix {settings.prefix}" if settings.prefix else "")


def _asked_profile(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Keep a profile only where it beats keys in the environment, which `Settings` looks at itself."""
    source = ctx.get_parameter_source(param.name or "")
    has_keys = bool(os.environ.get("AWS_ACCESS_KEY_ID"))
    if source is ParameterSource.ENVIRONMENT or (source is ParameterSource.DEFAULT_MAP and has_keys):
        return None
    return value


def connected(command: F) -> F:
    """Give a verb the flags that say where the queue is; it is passed them as `where`."""

    @functools.wraps(command)
    def call(*args: Any, **kwargs: Any) -> Any:
        where = Where(**{name: kwargs.pop(name) for name in PLACE})
        return command(*args, where=where, **kwargs)

    for name, (variables, text) in reversed(PLACE.items()):
        callback = _asked_profile if name == "profile" else None
        call = click.option(f"--{name}", envvar=variables, help=text, callback=callback)(call)
    return call  # type: ignore[return-value]


json_flag = click.option(
    "--json", "as_json", is_flag=True, envvar="BUQUET_JSON", help="Print JSON, one object a line."
)

yes_flag = click.option("--yes", "-y", is_flag=True, help="Act on many without asking.")

dry_run_flag = click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")


def run(where: Where, work: Callable[[Queue], Coroutine[Any, Any, T]]) -> T:
    """Connect, do the work, disconnect; return what the work returned."""
    from buquet.cli.loop import run_async

    async def connected_work() -> T:
        async with where.connect() as queue:
            return await work(queue)

    return run_async(connected_work())


# --- kinds of values -----------------------------------------------------------------------

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")


class Duration(click.ParamType):  # type: ignore[type-arg] # not generic before click 8.2
    """A duration such as `90s`, `10m`, `1h30m` or `7d`; a plain number is seconds. Gives seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it."""
        if isinstance(value, int | float):
            return float(value)
        text = str(value).strip().lower()
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return float(text)
        if not re.fullmatch(rf"(?:{_PART.pattern})+", text):
            self.fail(f"{value!r} is not a duration: write for instance 90s, 10m, 1h30m or 7d", param, ctx)
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


class Moment(click.ParamType):  # type: ignore[type-arg]
    """A time such as `2027-01-31T08:00:00Z`; without a zone it is local. Gives a datetime."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Read it."""
        if isinstance(value, datetime):
            return value
        try:
            return datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(
                f"{value!r} is not a time: write for instance 2027-01-31T08:00:00Z or '2027-01-31 08:00'",
                param,
                ctx,
            )


def read_json(text: str | None, *, what: str = "the input") -> Any:
    """Read a JSON value from an argument: JSON itself, `@FILE`, or `-` for standard input; `{}` if None.

    Raises
    ------
    click.UsageError
        It is not JSON, or the file cannot be read.
    """
    if text is None:
        return {}
    source = what
    try:
        if text == "-":
            source, text = "standard input", sys.stdin.read()
        elif text.startswith("@"):
            source = text[1:]
            text = Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{source} cannot be read: {error}") from error
    return parse_json(text, source)


def parse_json(text: str, source: str) -> Any:
    """Read JSON strictly, without NaN; a `click.UsageError` names the source."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(
            f'{source} is not JSON ({error}): write for instance \'{{"to": "user@example.com"}}\', @file.json'
            " or -"
        ) from error


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
