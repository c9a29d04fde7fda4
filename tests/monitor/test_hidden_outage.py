"""An outage that begins after a monitor's LIST and ends before its next one buries no live session."""

from __future__ import annotations

import contextlib

import pytest
from fleet import claim, leave_session, sessions
from virtual import World, virtual

from buquet.errors import Unavailable
from buquet.protocol.session import LIVE
from buquet.testing.faulty import Fault, Lost
from buquet.watch import Watch

BURIED_WITHIN_S = 60


@pytest.mark.parametrize("length_s", range(4, 60, 2))
@virtual
async def test_an_outage_that_no_list_met(world: World, length_s: int) -> None:
    outage = _Outage(world)
    queue = world.queue(plan=outage)
    watch = Watch(queue.ledger, queue.store)
    held = await claim(queue, (await queue.submit("do", None, timeout_seconds=3600)).id)
    leave_session(world, queue, held)  # its last heartbeat before the outage
    await world.clock.sleep(9)
    outage.ends_at = world.clock.monotonic() + length_s
    while world.clock.monotonic() <= outage.ends_at + 1.5:  # by then its heartbeat gets through
        await _check(watch)
        assert [session.state for session in sessions(world).values()] == [LIVE]
        await world.clock.sleep(1)
    # If none comes it is dead after all, and is not forgotten.
    await world.clock.sleep(watch.next_check_s(15))
    while sessions(world):
        await _check(watch)
        await world.clock.sleep(watch.next_check_s(15))
    assert world.clock.monotonic() - outage.ends_at <= BURIED_WITHIN_S


class _Outage:
    """LISTs are answered, and nothing else is."""

    def __init__(self, world: World) -> None:
        self.ends_at = 0.0
        self._clock = world.clock

    def __call__(self, kind: str, key: str) -> Fault | None:
        return Lost() if kind != "list" and self._clock.monotonic() < self.ends_at else None


async def _check(watch: Watch) -> None:
    with contextlib.suppress(Unavailable):
        await watch.check("m0")
