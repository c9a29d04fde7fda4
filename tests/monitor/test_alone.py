"""A monitor that runs alone sits out an outage, and says so once."""

from __future__ import annotations

import asyncio
import logging

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
