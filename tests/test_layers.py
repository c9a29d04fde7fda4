"""The layers: a file imports only from its own level or from lower ones.

Every import counts, also those inside functions and those for the type checker alone: a layer
that must be named in a signature is one that the reader has to know.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

LEVELS = {
    "buquet._core": 0,
    "buquet.errors": 1,
    "buquet.clock": 1,
    "buquet.config": 1,
    "buquet.s3": 2,
    "buquet.store": 3,
    "buquet.drivers": 3,
    "buquet.protocol": 4,
    "buquet.ledger": 5,
    "buquet.listing": 5,
    "buquet.deletions": 5,
    "buquet.incarnation": 5,
    "buquet.heartbeat": 5,
    "buquet.watch": 5,
    "buquet.deadletters": 5,
    "buquet.archiver": 5,
    "buquet.signals": 5,
    "buquet.submissions": 5,
    "buquet.queue": 5,
    "buquet.schedules": 5,
    "buquet.audit": 5,
    "buquet.worker": 6,
    "buquet.monitor": 6,
    "buquet.scheduler": 6,
    "buquet.connection": 7,
    "buquet": 7,  # the facade; it imports lazily, so it is no file of a layer itself
    "buquet.__main__": 8,
    "buquet.cli": 8,
    "buquet.testing": 8,
}

PURE = ("buquet._core", "buquet.protocol", "buquet.drivers")
"""These do no I/O and read no clock; it comes to them as arguments."""

IO = {
    *("asyncio", "select", "selectors", "socket", "ssl", "signal", "subprocess", "threading"),
    *("aiohttp", "botocore", "http", "os", "pathlib", "sqlite3", "time", "random", "secrets"),
}


def modules() -> dict[str, Path]:
    """Every module of the package and its file; the facade is exempt."""
    files = [*ROOT.glob("buquet/**/*.py"), *ROOT.glob("drivers/**/*.py")]
    return {_name(file): file for file in files if file != ROOT / "buquet/__init__.py"}


def _name(file: Path) -> str:
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    if parts[0] == "drivers":
        parts.insert(0, "buquet")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, package: str) -> Iterator[str]:
    """The modules that a file imports, relative ones resolved against its package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*up, node.module] if node.module else up)
            # `from buquet import errors` names the module, not the package.
            known = (f"{base}.{alias.name}" for alias in node.names)
            yield from (name if name in LEVELS else base for name in known)


def layer(module: str) -> str | None:
    """The entry of `LEVELS` that a module belongs to; the facade is only itself."""
    name = module
    while name and name not in LEVELS:
        name = name.rpartition(".")[0]
    return name if name and (name != "buquet" or module == "buquet") else None


MODULES = modules()


def _imports_of(module: str) -> set[str]:
    file = MODULES[module]
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return set(imports(ast.parse(file.read_text()), package))


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module: str) -> None:
    own = layer(module)
    assert own is not None, f"{module} has no level: give it one in LEVELS"
    for imported in _imports_of(module):
        if imported.split(".")[0] != "buquet":
            continue
        other = layer(imported)
        assert other is not None, f"{module} imports {imported}, which has no level"
        assert LEVELS[other] <= LEVELS[own], f"{module} (level {LEVELS[own]}) imports {imported}, from above"


@pytest.mark.parametrize("module", [name for name in MODULES if layer(name) == "buquet.protocol"])
def test_the_protocol_sees_no_store(module: str) -> None:
    for imported in _imports_of(module):
        other = layer(imported)
        assert other in {None, "buquet.protocol"} or LEVELS[other] <= 1, f"{module} imports {imported}"


@pytest.mark.parametrize("module", [name for name in MODULES if layer(name) in PURE])
def test_pure_modules_do_no_io(module: str) -> None:
    assert not {imported.split(".")[0] for imported in _imports_of(module)} & IO


@pytest.mark.parametrize(
    ("source", "package", "expected"),
    [
        ("import buquet.store.s3", "buquet", {"buquet.store.s3"}),
        ("from buquet import errors, connect", "buquet", {"buquet.errors", "buquet"}),
        ("from .generic import DRIVER", "buquet.drivers", {"buquet.drivers.generic"}),
        ("from . import ident", "buquet._core", {"buquet._core"}),
        ("from ..store import retry", "buquet.worker", {"buquet.store"}),
        ("def f():\n    import aiohttp", "buquet", {"aiohttp"}),
        ("if TYPE_CHECKING:\n    from buquet.queue import Queue", "buquet.store", {"buquet.queue"}),
    ],
)
def test_imports_are_found(source: str, package: str, expected: set[str]) -> None:
    assert set(imports(ast.parse(source), package)) == expected
