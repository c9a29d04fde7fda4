"""What is built and what is in it: sdist, wheel, editable install, and an install without a compiler."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from buquet._core import MODULES

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).parent.parent
SOURCES = ("buquet", "drivers", "tests", "bench", "docs", "examples")
TOP = {"LICENSE", "MANIFEST.in", "Makefile", "README.md", "pyproject.toml", "setup.py"}
NOT_SOURCES = (".git", ".venv", ".*cache", "build", "dist", "*.egg-info")
MADE = {".so", ".pyd", ".c", ".pyc"}
SAYS_PLAIN = "buquet is installed as plain Python, without its compiled core"

REPORT = """
import json, sys
from importlib import import_module, metadata
import buquet._core
from buquet._core import ident
for name in buquet._core.MODULES:
    import_module(f"buquet._core.{name}")
for driver in metadata.distribution("buquet").entry_points.select(group="buquet.drivers"):
    driver.load()
json.dump(
    {
        "compiled": buquet._core.COMPILED,
        "file": buquet.__file__,
        "id": ident.mint(0, 5, 0),
    },
    sys.stdout,
)
"""


def run(*command: object, cwd: Path, **env: str) -> str:
    """Run a command; return what it printed, or fail with it."""
    environment = os.environ | {"PYTHONSAFEPATH": "1", "CFLAGS": "-O0"} | env
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@dataclass(frozen=True)
class Environment:
    """A new virtual environment that sees the libraries of this one, but not its buquet."""

    directory: Path

    @classmethod
    def create(cls, directory: Path) -> "Environment":
        run(sys.executable, "-m", "venv", "--without-pip", directory, cwd=directory.parent)
        environment = cls(directory)
        # A path file comes after the environment's own packages, and reads no path files itself.
        libraries = directory / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        (libraries / "libraries.pth").write_text(sysconfig.get_path("purelib"))
        return environment

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    def install(self, *what: object, **env: str) -> str:
        """Install; return the build log."""
        return run(
            *(sys.executable, "-m", "pip", "--python", self.python, "install", "--verbose"),
            *("--no-deps", "--no-build-isolation", "--no-index", "--force-reinstall", *what),
            cwd=self.directory,
            **env,
        )

    def report(self) -> dict[str, object]:
        """Import the whole core and all drivers, and tell what was found."""
        return json.loads(run(self.python, "-c", REPORT, cwd=self.directory))


@dataclass(frozen=True)
class Built:
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist, and the wheel that was built from it."""
    out = tmp_path_factory.mktemp("built")
    # A copy, because setuptools also packs whatever an earlier build listed in the egg-info.
    checkout = shutil.copytree(ROOT, out / "checkout", ignore=shutil.ignore_patterns(*NOT_SOURCES))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, checkout, cwd=out)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return Built(sdist, wheel)


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment.create(tmp_path / "venv")


def source_files(*directories: str) -> set[str]:
    """Return the files below some directories of the checkout that people wrote."""
    return {
        path.relative_to(ROOT).as_posix()
        for directory in directories
        for path in (ROOT / directory).rglob("*")
        if path.is_file() and path.suffix not in MADE and ".benchmarks" not in path.parts
    }


def test_the_sdist_holds_all_sources_and_nothing_made(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    assert source_files(*SOURCES) | TOP <= names
    assert not {name for name in names if Path(name).suffix in MADE}
    places = {name.partition("/")[0] for name in names if "/" in name}
    assert places <= {*SOURCES, ".ci", "buquet.egg-info"}


def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    expected = {name for name in source_files("buquet") if Path(name).suffix in (".py", ".pxd")}
    expected |= {f"buquet/{name}" for name in source_files("drivers")}
    expected |= {f"buquet/_core/{name}{suffix}" for name in MODULES}
    expected.add("buquet/py.typed")
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == expected


def test_the_wheel_installs_the_compiled_core(built: Built, environment: Environment) -> None:
    environment.install(built.wheel)
    report = environment.report()
    assert report["compiled"] is True
    assert report["file"].startswith(str(environment.directory))


@pytest.mark.parametrize("cause", ["CC", "BUQUET_PURE"])
def test_without_a_compiler_it_installs_as_plain_python(
    built: Built, environment: Environment, cause: str
) -> None:
    value = {"CC": shutil.which("false"), "BUQUET_PURE": "1"}[cause]
    log = environment.install(built.sdist, **{cause: value})
    assert log.count(SAYS_PLAIN) == 1
    report = environment.report()
    assert report["compiled"] is False
    assert report["file"].startswith(str(environment.directory))
    assert report["id"] == "00000000-0000-7000-9400-000000000000"


def test_an_editable_install_is_compiled_and_can_be_made_plain(
    built: Built, environment: Environment, tmp_path: Path
) -> None:
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (checkout,) = tmp_path.glob("buquet-*")
    environment.install("--editable", checkout)
    report = environment.report()
    assert report["compiled"] is True
    assert report["file"] == str(checkout / "buquet" / "__init__.py")

    log = environment.install("--editable", checkout, BUQUET_PURE="1")
    assert log.count(SAYS_PLAIN) == 1
    assert environment.report()["compiled"] is False
