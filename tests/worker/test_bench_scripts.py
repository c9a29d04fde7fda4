"""The benchmarks of the worker still run; what they measure is for `make bench` and `make profile`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


def report(script: str, *arguments: str) -> dict[str, Any]:
    """Run a script and read its JSON."""
    ran = subprocess.run(
        [sys.executable, BENCH / script, *arguments, "--json"],
        env={**os.environ, "PYTHONPATH": str(BENCH)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_the_profile_charges_all_time_to_layers() -> None:
    found = report("layers.py", "--store", "memory", "--tasks", "4000")
    assert found.keys() == {"submit", "worker"}
    worker = found["worker"]
    assert sum(worker["by_layer"].values()) == pytest.approx(worker["us_a_task"])
    assert {"asyncio", "claim, run, settle", "records, ids, times"} <= worker["by_layer"].keys()
    assert worker["by_layer"].get("other", 0) < worker["us_a_task"] / 20


def test_a_worker_far_from_its_store_is_measured() -> None:
    near, *far = report("pipeline.py", "--only", "far", "--tasks", "300")["far"]
    assert near["share"] is None
    assert [(one["latency_ms"], one["tasks"]) for one in far] == [(20, 300), (50, 300)]
    assert all(0.1 < one["share"] <= 1 for one in far)
