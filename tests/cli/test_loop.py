"""The event loop of the verbs."""

from __future__ import annotations

import asyncio

import pytest

from buquet.cli import loop


async def kind() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


@pytest.mark.parametrize(("package", "expected"), [("uvloop", "uvloop"), ("not_installed", "asyncio")])
def test_uvloop_serves_where_it_is_installed(package, expected, monkeypatch):
    monkeypatch.setattr(loop, "UVLOOP", package)
    assert loop.run_async(kind()) == expected
