"""Every test of the core runs on the compiled modules and on their plain twins."""

from types import SimpleNamespace

import plain_core
import pytest

from buquet._core import COMPILED


@pytest.fixture(scope="session", params=["compiled", "plain"])
def core(request: pytest.FixtureRequest) -> SimpleNamespace:
    """The core's modules as attributes: `core.sign`, `core.shard`, ..."""
    if request.param == "plain":
        return plain_core.load(plain_core.PACKAGE)
    if not COMPILED:
        pytest.skip("this installation has no compiled core")
    return plain_core.load("buquet._core")
