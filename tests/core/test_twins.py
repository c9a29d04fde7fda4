"""The compiled core is what is used, and its plain twin is what it was compiled from."""

import os
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import plain_core
import pytest

import buquet._core
from buquet._core import COMPILED, MODULES

CHECKOUT = Path(__file__).parents[2] / "buquet" / "_core"
PURE = bool(os.environ.get("BUQUET_PURE"))  # at import: the tests themselves see no such settings


def test_modules_are_those_of_the_directory() -> None:
    assert sorted(path.stem for path in plain_core.DIRECTORY.glob("*.py")) == ["__init__", *MODULES]


@pytest.mark.skipif(PURE, reason="BUQUET_PURE is set")
def test_the_compiled_core_is_the_default() -> None:
    assert COMPILED


def test_each_param_tests_what_it_says(core: SimpleNamespace, request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params["core"]
    suffixes = {Path(getattr(core, name).__file__).suffix for name in MODULES}
    assert suffixes == ({".py"} if kind == "plain" else {".so"})


def test_plain_twins_use_each_other() -> None:
    plain = plain_core.load(plain_core.PACKAGE)
    assert plain.sign.format_basic_s is plain.rfc3339.format_basic_s
    assert plain.sign.format_basic_s is not buquet._core.rfc3339.format_basic_s


@pytest.mark.skipif(plain_core.DIRECTORY != CHECKOUT, reason="this is an installed core")
def test_no_extension_is_older_than_its_source() -> None:
    """In a checkout, an extension shadows the source that was edited after it was built."""
    for name in MODULES if COMPILED else ():
        extension = Path(import_module(f"buquet._core.{name}").__file__)
        source = plain_core.DIRECTORY / f"{name}.py"
        assert extension.stat().st_mtime >= source.stat().st_mtime, f"{name} is stale: build it again"
