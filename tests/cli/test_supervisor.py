"""What the parent of several worker processes sends them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from buquet.cli import supervisor

CHILD = """#!{python}
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: open({told!r}, "a").write("x"))
open({ready!r}, "a").write("x")
deadline = time.monotonic() + 1.5
while time.monotonic() < deadline:
    time.sleep(0.05)
"""


async def test_one_stop_is_one_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one would have the children hand back what they run."""
    told, ready, child = tmp_path / "told", tmp_path / "ready", tmp_path / "child"
    child.write_text(CHILD.format(python=sys.executable, told=str(told), ready=str(ready)))
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    parent = supervisor.Supervisor(["worker", "jobs:worker"], 3, reload=False)
    running = asyncio.create_task(parent._run())
    while not ready.exists() or len(ready.read_text()) < 3:
        await asyncio.sleep(0.02)
    parent._stop()
    assert await running == 0
    assert told.read_text() == "xxx"
