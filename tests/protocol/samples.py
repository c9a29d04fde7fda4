"""Records to begin with: one task, pending and running."""

from __future__ import annotations

from typing import Any

import msgspec

from buquet import RetryPolicy
from buquet._core import ident
from buquet._core.record import Record, claim
from buquet.protocol.task import TaskStatus
from buquet.protocol.transitions import Outcome, submitted

DUE = 1_800_000_000_000
NOW = DUE + 60_000
TASK_ID = ident.mint(DUE, 5, 0xABCDEF)


def pending(**changes: Any) -> Record:
    record = submitted(
        task_id=TASK_ID,
        task_type="mail",
        input_json=b'{"to":"x"}',
        priority=5,
        created_ms=DUE - 10,
        due_ms=DUE,
        timeout_seconds=30,
        max_retries=3,
        retry_policy=RetryPolicy(),
        nonce="n0",
    )
    return msgspec.structs.replace(record, **changes)


def running(**changes: Any) -> Record:
    record = claim(pending(), at_ms=NOW, lease_id="lease", nonce="n1", worker_id="w", incarnation="i")
    return msgspec.structs.replace(record, **changes)


def outcome(status: str = "pending", **details: Any) -> Outcome:
    return Outcome(TaskStatus(status), "n2", NOW + 5_000, **details)
