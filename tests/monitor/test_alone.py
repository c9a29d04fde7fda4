"""A monitor that runs alone sits out an outage, and says so once."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

import pytest
from virtual import World, virtual

from buquet.monitor import Monitor
from buquet.testing.faulty import Lost


@virtual
async def test_an_outage_is_told_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    away = False
    monitor = Monitor(world.queue(plan=lambda _kind, _key: Lost() if away else None), "alone")
    running = asyncio.create_task(monitor.run())
    await world.clock.sleep(40)
    away = True
    await world.clock.sleep(600)
    away = False
    await world.clock.sleep(60)
    monitor.stop()
    await running
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [text.split(":")[0] for text in warnings] == ["sessions not checked", "sessions are checked again"]


@pytest.mark.parametrize(
    ("seconds", "error"),
    [
        *((odd, ValueError) for odd in (0, -5, math.nan, math.inf, 1e10)),
        *((odd, TypeError) for odd in ("15", None, True)),
    ],
)
@pytest.mark.parametrize("name", ["check_interval_s", "session_ttl_s"])
@virtual
async def test_an_odd_number_of_seconds_is_refused(
    world: World, name: str, seconds: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=name):
        await asyncio.wait_for(Monitor(world.queue()).run(**{name: seconds}), 60)
    assert world.keys() == []


@pytest.mark.parametrize(
    ("name", "error"),
    [("", ValueError), (" ", ValueError), ("a\nb", ValueError), ("x" * 201, ValueError), (7, TypeError)],
)
@virtual
async def test_an_odd_name_is_refused(world: World, name: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="monitor_id"):
        Monitor(world.queue(), name)
