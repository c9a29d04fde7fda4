"""Build the compiled core; all other metadata stands in pyproject.toml.

Set `CFLAGS=-O0` for a build in a quarter of the time, `BUQUET_PURE=1` for none at all.
"""

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, ExecError, PlatformError

CORE = Path("buquet", "_core")
MODULES = sorted(path.stem for path in CORE.glob("*.py") if path.stem != "__init__")


class BuildCore(build_ext):
    """Compile every module of the core, or none: then the same files serve as plain Python."""

    extensions: list[Extension]

    def initialize_options(self) -> None:
        """Compile on all processors, unless told otherwise."""
        super().initialize_options()
        self.parallel = os.cpu_count()

    def build_extensions(self) -> None:
        """Translate and compile; without a C compiler, or where BUQUET_PURE is set, say so once."""
        try:
            if os.environ.get("BUQUET_PURE"):
                raise PlatformError("BUQUET_PURE is set")
            self._translate()
            super().build_extensions()
        except (CCompilerError, ExecError, PlatformError) as error:
            self.warn(f"buquet is installed as plain Python, without its compiled core: {error}")
            self._discard()

    def copy_extensions_to_source(self) -> None:
        """Finish a build in place, after which only the extensions of this build are there."""
        if not self.extensions:
            for name in MODULES:
                Path(self.get_ext_filename(f"buquet._core.{name}")).unlink(missing_ok=True)
        super().copy_extensions_to_source()

    def _translate(self) -> None:
        # Imported and called here and not above: setup.py runs in every build hook, and a
        # translation in `finalize_options` makes the sdist lose the sources.
        from Cython.Build import cythonize  # noqa: PLC0415

        translated = cythonize(
            self.extensions,
            build_dir="build/cython",
            # The annotations say `int` where the .pxd files say which C integer.
            compiler_directives={"language_level": 3, "annotation_typing": False},
        )
        sources = {extension.name: extension.sources for extension in translated}
        for extension in self.extensions:
            extension.sources = sources[extension.name]

    def _discard(self) -> None:
        """Drop what this build or an earlier one left, so that no half of a core is installed."""
        for extension in self.extensions:
            Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
        self.extensions = []


setup(
    cmdclass={"build_ext": BuildCore},
    ext_modules=[Extension(f"buquet._core.{name}", [str(CORE / f"{name}.py")]) for name in MODULES],
)
