"""A second copy of `buquet._core`, made from the plain sources, beside the compiled one.

Siblings import each other relatively, so the modules of the copy use each other, not the
compiled ones.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import buquet._core

PACKAGE = "plain_buquet_core"
DIRECTORY = Path(buquet._core.__file__).parent


class _SourcesOnly(MetaPathFinder):
    """Finds the `.py` where the ordinary finder would prefer the extension beside it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package != PACKAGE:
            return None
        return spec_from_file_location(fullname, DIRECTORY / f"{name}.py")


def load(package: str) -> SimpleNamespace:
    """Return the core's modules by name, from `buquet._core` or from `PACKAGE`, the plain copy."""
    if package == PACKAGE and PACKAGE not in sys.modules:
        sys.modules[PACKAGE] = ModuleType(PACKAGE)
        sys.modules[PACKAGE].__path__ = []
        sys.meta_path.insert(0, _SourcesOnly())
    return SimpleNamespace(**{name: import_module(f"{package}.{name}") for name in buquet._core.MODULES})
