"""House rules that no linter knows."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent

MAX_FILE_LINES = 600
MAX_TEST_FILE_LINES = 800
MAX_FUNCTION_LINES = 60

MADE = {"build", "dist", "__pycache__"}
"""Folders that hold what was built; so do the hidden ones, but for `.ci`."""

COMPILED = {".so", ".pyd"}


def files(pattern: str) -> list[Path]:
    """The tree's own files."""
    return [file for file in sorted(ROOT.rglob(pattern)) if file.is_file() and _is_source(file)]


def _is_source(file: Path) -> bool:
    folders = file.relative_to(ROOT).parts[:-1]
    return file.suffix not in COMPILED and not any(
        folder in MADE or folder.endswith(".egg-info") or (folder.startswith(".") and folder != ".ci")
        for folder in folders
    )


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHON = files("*.py")
DRIVERS = [file for file in PYTHON if file.parent == ROOT / "drivers"]
PACKAGED = [file for file in PYTHON if file.relative_to(ROOT).parts[0] in {"buquet", "drivers"}]


# --- size ----------------------------------------------------------------------------------


def test_files_stay_readable() -> None:
    for file in PYTHON:
        most = MAX_FILE_LINES if file in PACKAGED else MAX_TEST_FILE_LINES
        assert len(file.read_text().splitlines()) <= most, f"{file} has more than {most} lines"


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body; the docstring and the parameters don't count."""
    body = function.body[ast.get_docstring(function) is not None :]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def test_functions_stay_short() -> None:
    found = [(file, function.name, length(function)) for file in PACKAGED for function in functions(file)]
    assert not [function for function in found if function[2] > MAX_FUNCTION_LINES]


# --- the tree speaks of the project alone ----------------------------------------------------

# Put together, so that this file does not match: folders of one machine, a package index of
# somebody's own.
HERE_ONLY = re.compile(
    r"(?<![\w.~-])/(?:" + "root|home|Users|work|farm" + ")/|index-" + "url|trusted-" + "host|/sim" + "ple/"
)


def test_no_file_knows_one_machine() -> None:
    found = {file: HERE_ONLY.search(file.read_text(errors="replace")) for file in files("*")}
    assert not {file: match for file, match in found.items() if match}


# --- drivers -------------------------------------------------------------------------------


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_file_imports_a_driver() -> None:
    """They are found by name (`registry.load`), and the folder `drivers` is no package of its own."""
    others = set(PYTHON) - set(DRIVERS)
    found = [(file, name) for file in others for name in imported(file)]
    assert not [use for use in found if re.match(r"(buquet\.)?drivers\b", use[1])]


# --- what is declared is there, and the other way round --------------------------------------


def test_every_package_is_shipped() -> None:
    names = {".".join(file.parent.relative_to(ROOT).parts) for file in PACKAGED} - {"drivers"}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == names | {"buquet.drivers"}


def test_every_driver_has_an_entry_point() -> None:
    declared = PROJECT["project"]["entry-points"]["buquet.drivers"].values()
    names = {file.stem for file in DRIVERS} - {"__init__"}
    assert set(declared) == {f"buquet.drivers.{name}:DRIVER" for name in names}


def test_every_dependency_is_argued_for() -> None:
    groups = [
        PROJECT["build-system"]["requires"],
        PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"].values(),
        *PROJECT["dependency-groups"].values(),
    ]
    declared = {re.match(r"[\w-]+", requirement)[0] for group in groups for requirement in group}
    text = (ROOT / "docs/dependencies.md").read_text()
    assert set(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) == declared


# --- docker-compose.yml, which the tests cannot run -------------------------------------------


@pytest.mark.parametrize("name", ["localstack", "minio"])
def test_compose_services_are_pinned_local_and_checked(name: str) -> None:
    service = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"][name]
    assert re.search(r":[\w.-]*\d[\w.-]*$", service["image"])
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert "buquet" in " ".join(service["healthcheck"]["test"]), "the health check makes the bucket"
