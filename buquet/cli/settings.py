"""Configuration files: `buquet.toml`, and `[tool.buquet]` in `pyproject.toml`, which beats it.

Both are looked for in the working directory and its parents. A key is a flag's name; in a table
of a verb's name it is for that verb alone::

    endpoint = "http://127.0.0.1:8333"
    bucket = "jobs"

    [worker]
    concurrency = 32

Environment variables beat the files, flags beat both.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from buquet.cli.options import PLACE


@dataclass(slots=True)
class Files:
    """What the files say: for all verbs, for each verb, and which file said it."""

    shared: dict[str, Any] = field(default_factory=dict)
    by_verb: dict[str, dict[str, Any]] = field(default_factory=dict)
    origins: dict[str, Path] = field(default_factory=dict)
    """The file of each shared key, and of each `verb.key`."""

    def defaults_for(self, verb: str) -> dict[str, Any]:
        """Return the defaults of a verb's parameters, as click takes them."""
        return {**self.shared, **self.by_verb.get(verb, {})}


def load(start: Path) -> Files:
    """Read the files that hold for a folder.

    Raises
    ------
    click.UsageError
        A file is no TOML, or has a key that is no flag.
    """
    files = Files()
    for name, table in (("buquet.toml", ()), ("pyproject.toml", ("tool", "buquet"))):
        path = next((file for folder in (start, *start.parents) if (file := folder / name).is_file()), None)
        if path is not None:
            _add(files, path, _read(path, table))
    return files


def _read(path: Path, table: tuple[str, ...]) -> dict[str, Any]:
    try:
        found: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}") from error
    for name in table:
        found = found.get(name, {}) if isinstance(found, dict) else {}
    if not isinstance(found, dict):
        raise click.UsageError(f"{path}: {'.'.join(table)} must be a table")
    return found


def _add(files: Files, path: Path, table: dict[str, Any]) -> None:
    for key, value in table.items():
        if isinstance(value, dict):
            verb = files.by_verb.setdefault(key, {})
            for name, setting in value.items():
                verb[name.replace("-", "_")] = setting
                files.origins[f"{key}.{name.replace('-', '_')}"] = path
        elif key in PLACE:
            files.shared[key] = str(value)
            files.origins[key] = path
        else:
            raise click.UsageError(
                f"{path}: unknown key {key!r}; there are {', '.join(PLACE)}, and tables named as verbs"
            )


def check(files: Files, command: click.Command, verb: str) -> None:
    """Raise a `click.UsageError` if a verb's table has a key that is none of its flags."""
    known = {_key(param) for param in command.params if isinstance(param, click.Option)} - {"help"}
    if isinstance(command, click.Group):
        known |= set(command.commands)
    for name in files.by_verb.get(verb, {}):
        if name not in known:
            raise click.UsageError(
                f"{files.origins[f'{verb}.{name}']}: [{verb}] has an unknown key {name!r};"
                f" there are {', '.join(sorted(known))}"
            )


def _key(param: click.Parameter) -> str:
    """The name of a flag as files write it."""
    long = next((name for name in param.opts if name.startswith("--")), param.opts[0])
    return long.lstrip("-").replace("-", "_")


def defaults(files: Files, command: click.Command, verb: str) -> dict[str, Any]:
    """Return the defaults of a verb by click's names of its parameters."""
    given = files.defaults_for(verb)
    if isinstance(command, click.Group):
        return {
            name: defaults(_inside(files, verb, name), sub, name) for name, sub in command.commands.items()
        }
    names = {_key(param): param.name for param in command.params if param.name}
    return {names[key]: value for key, value in given.items() if key in names}


def _inside(files: Files, group: str, verb: str) -> Files:
    table = files.by_verb.get(group, {}).get(verb, {})
    return Files(files.shared, {verb: table if isinstance(table, dict) else {}}, files.origins)
