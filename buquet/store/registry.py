"""Drivers by name: which one a configuration selects, and where it is found.

Drivers are entry points of the group `buquet.drivers`; this package's own are no exception.

Example::

    driver = load(select(settings))

Errors: `UnknownDriver`, which lists the names that are installed.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from buquet.errors import UnknownDriver
from buquet.store.driver import Driver

if TYPE_CHECKING:
    from buquet.config import Settings

GROUP = "buquet.drivers"

_BY_DOMAIN = {
    "amazonaws.com": "aws",
    "amazonaws.com.cn": "aws",
    "r2.cloudflarestorage.com": "r2",
}


def names() -> list[str]:
    """Return the names of the installed drivers, sorted."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def load(name: str) -> Driver:
    """Return the driver of that name.

    Raises `UnknownDriver` if none is installed, or if what is installed cannot be used.
    """
    for point in entry_points(group=GROUP, name=name):
        try:
            driver = point.load()
        except (ImportError, AttributeError) as error:
            raise UnknownDriver(
                f"the driver {name!r} ({point.value}) cannot be imported: {error}{_in_source_tree()}"
            ) from error
        if not isinstance(driver, Driver):
            raise UnknownDriver(f"{point.value}, installed as the driver {name!r}, is not a buquet Driver")
        return driver
    raise UnknownDriver(f"no driver {name!r} is installed; there are {', '.join(names())}")


def select(settings: Settings) -> str:
    """Return the name of the driver for an S3 store: the one asked for, else by the endpoint."""
    if settings.driver:
        return settings.driver
    if settings.endpoint is None:
        return "aws"
    host = urlsplit(settings.endpoint).hostname or ""
    for domain, name in _BY_DOMAIN.items():
        if host == domain or host.endswith(f".{domain}"):
            return name
    return "s3"


def _in_source_tree() -> str:
    """Say so where the package was found in its source tree, which has the drivers elsewhere."""
    if Path(__file__).parents[2].joinpath("drivers").is_dir():
        return (
            " (buquet was imported from its source tree: work in another directory, set PYTHONSAFEPATH=1,"
            " or install the tree with `pip install -e .`)"
        )
    return ""
