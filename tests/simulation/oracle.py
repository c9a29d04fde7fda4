"""What must hold: checked after every step that the bucket takes, and at the end.

The oracle knows the bucket as its server sees it, and spells keys by itself, so that a fault
in the package's own layout does not hide from it.

Errors: `Breach`, whose `rule` names the invariant.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from buquet._core import ident
from buquet._core.record import Record
from buquet._core.rfc3339 import parse_ms
from buquet._core.shard import shard_of
from buquet.protocol.session import Session
from buquet.store.interface import IfMatches
from buquet.store.memory import MemoryBucket
from simulation.process import Agenda, Process

if TYPE_CHECKING:
    from simulation.wire import Request

TERMINAL = {"completed", "failed", "archived"}

_read_record = msgspec.json.Decoder(Record).decode
_read_session = msgspec.json.Decoder(Session).decode

PENDING_UNMARKED = "pending without its marker"
RUNNING_UNMARKED = "running without a marker or a journal"
SUBMIT_LOST = "acknowledged, but neither ledger nor first marker"
TERMINAL_CHANGED = "a terminal task changed"
ATTEMPT_FELL = "the attempt fell"
BAD_STEP = "no such transition"
NOT_THE_LEASE = "a lease that does not run was completed"
WRONG_OUTPUT = "the output of an older attempt"
NO_CLAIM = "an execution without a claim"
TWICE = "one claim, two executions"
SECOND_LIFE = "a session was created twice"
NOT_BURIED = "a session was deleted that is no tombstone"
FOREIGN_LEASE = "a journal lists a lease of another incarnation"
UNSETTLED_412 = "412 to a resend was not settled by a read"
REMOVED = "a ledger was deleted without its mark"
REVIVED = "a removed task came back"
STARVED = "a due task was left waiting"
NOT_QUIET = "the run did not come to rest"
WRONG_END = "a task ended as it could not"
RUNAWAY = "far more requests than a run can need"
REQUEUED_TWICE = "a task was requeued as two"
DIED = "a process died by itself"


class Breach(Exception):
    """An invariant does not hold.

    Parameters
    ----------
    rule:
        The invariant's name.
    about:
        The task or session that it concerns.
    message:
        What was seen.
    """

    def __init__(self, rule: str, about: str, message: str) -> None:
        super().__init__(f"{rule}: {about}: {message}")
        self.rule = rule
        self.about = about


class Oracle:
    """Watches one bucket.

    Parameters
    ----------
    agenda:
        The time.
    bucket:
        The bucket.
    shard_prefix_len:
        The layout's.
    """

    def __init__(self, agenda: Agenda, bucket: MemoryBucket, shard_prefix_len: int) -> None:
        self.steps = 0
        """How many writes and deletions took effect."""
        self.ledgers: dict[str, Record] = {}
        self.sessions: dict[str, Session] = {}
        self.owners: dict[str, Process] = {}
        """Who created which session."""
        self.acknowledged: dict[str, None] = {}
        self.breach: Breach | None = None
        self.trace: list[tuple[float, str]] = []
        self._agenda = agenda
        self._bucket = bucket
        self._shard_prefix_len = shard_prefix_len
        self._claims: dict[tuple[str, int], tuple[str, str]] = {}
        self._executed: dict[tuple[str, int], None] = {}
        self._leases: Counter[str] = Counter()
        self._lease_owner: dict[str, str | None] = {}
        self._lives: dict[str, None] = {}
        self._removed: dict[str, None] = {}
        self._requeued: dict[str, str] = {}
        self._sent: defaultdict[str, Counter[bytes]] = defaultdict(Counter)
        self._owes_read: dict[str, str] = {}

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append((self._agenda.now, text))

    def fail(self, rule: str, about: str, message: str) -> None:
        """Report a breach; the first one counts."""
        if self.breach is None:
            self.breach = Breach(rule, about, message)
            self.note(f"BREACH {self.breach}")
            self._agenda.stop()

    # --- what the bucket did -----------------------------------------------------------------

    def answered(self, request: Request, *, is_applied: bool) -> None:
        """Look at a PUT that reached the bucket."""
        name = request.process.name
        self.note(f"{name} {request.row} {request.key} -> {'ok' if is_applied else 'refused'}")
        self._sent[name][request.body] += 1
        if not is_applied:
            return
        self.steps += 1
        folder, _, rest = request.key.partition("/")
        if folder == "tasks":
            self._ledger_written(rest.split("/")[1].removesuffix(".json"), request)
        elif folder == "workers":
            self._session_written(request)
        elif request.body:
            self._submitted(_read_record(request.body))

    def deleted(self, request: Request) -> None:
        """Look at a DELETE that reached the bucket."""
        self.steps += 1
        self.note(f"{request.process.name} {request.row} {' '.join(request.keys)}")
        for key in request.keys:
            folder, _, rest = key.partition("/")
            if folder == "ready":
                self.check(rest.split("/")[2][13:49])
            elif folder == "tasks":
                self._ledger_deleted(rest.split("/")[1].removesuffix(".json"), request)
            elif folder == "workers" and key in self.sessions:
                gone = self.sessions.pop(key)
                if gone.state != "tombstone":
                    self.fail(NOT_BURIED, key, f"deleted by {request.process.name}")
                self._journal_changed(gone, None)

    def _submitted(self, record: Record) -> None:
        if record.requeue_of is not None:
            first = self._requeued.setdefault(record.requeue_of, record.id)
            if first != record.id:
                self.fail(REQUEUED_TWICE, record.requeue_of, f"as {first} and as {record.id}")

    def _ledger_written(self, task_id: str, request: Request) -> None:
        record, before = _read_record(request.body), self.ledgers.get(task_id)
        self.ledgers[task_id] = record
        name = request.process.name
        self.note(f"    {task_id} is {record.status}, attempt {record.attempt}, lease {record.lease_id}")
        if record.lease_id is not None and record.lease_id not in self._lease_owner:
            self._lease_owner[record.lease_id] = record.incarnation
            self._claims[task_id, record.attempt] = (record.lease_id, name)
        if task_id in self._removed:
            self.fail(REVIVED, task_id, f"{_short(record)} by {name}")
        if record.requeued_as is not None and record.requeued_as not in self._removed:
            self.acknowledged[record.requeued_as] = None
            self.check(record.requeued_as)
        wrong = None if record == before else _wrong_step(before, record)
        if wrong is not None:
            self.fail(wrong, task_id, f"{_short(before)} became {_short(record)} by {name}")
        if record.status == "completed" and (before is None or before.status != "completed"):
            output = msgspec.json.decode(record.output)
            if output["attempt"] != record.attempt:
                self.fail(WRONG_OUTPUT, task_id, f"attempt {record.attempt} completed with {output}")
        self.check(task_id)

    def _ledger_deleted(self, task_id: str, request: Request) -> None:
        record = self.ledgers.pop(task_id, None)
        if record is not None and (record.status != "archived" or record.deletion_marked_at is None):
            self.fail(REMOVED, task_id, f"{_short(record)} by {request.process.name}")
        self.acknowledged.pop(task_id, None)
        self._removed[task_id] = None

    def _session_written(self, request: Request) -> None:
        session, key = _read_session(request.body), request.key
        before = self.sessions.pop(key, None)
        self.sessions[key] = session  # at the end: in the order of their last beats
        if not isinstance(request.condition, IfMatches):
            if key in self._lives:
                self.fail(SECOND_LIFE, key, f"by {request.process.name}")
            self._lives[key] = None
            self.owners[key] = request.process
        for entry in session.journal:
            if self._lease_owner.get(entry.lease_id, session.incarnation) != session.incarnation:
                self.fail(FOREIGN_LEASE, key, f"lease {entry.lease_id} of task {entry.task_id}")
        self.note(f"    journal {' '.join(entry.lease_id for entry in session.journal) or 'empty'}")
        self._journal_changed(before, session)

    def _journal_changed(self, before: Session | None, after: Session | None) -> None:
        for entry in after.journal if after else ():
            self._leases[entry.lease_id] += 1
        for entry in before.journal if before else ():
            self._leases[entry.lease_id] -= 1
            self.check(entry.task_id)

    # --- the strict invariant ------------------------------------------------------------------

    def check(self, task_id: str) -> None:
        """Check one task after a step that may concern it."""
        record = self.ledgers.get(task_id)
        if record is None:
            if task_id in self.acknowledged and not self._has_marker(
                task_id, ident.priority(task_id), ident.due_ms(task_id), 0
            ):
                self.fail(SUBMIT_LOST, task_id, "nothing tells of it any more")
            return
        due_ms = parse_ms(record.available_at)
        if record.status == "pending":
            if not self._has_marker(task_id, record.priority, due_ms, record.attempt):
                self.fail(PENDING_UNMARKED, task_id, _short(record))
        elif record.status == "running":
            assert record.lease_id is not None
            is_marked = self._has_marker(task_id, record.priority, due_ms, record.attempt - 1)
            if not is_marked and self._leases[record.lease_id] <= 0:
                self.fail(RUNNING_UNMARKED, task_id, f"{_short(record)}, lease {record.lease_id}")

    def _has_marker(self, task_id: str, priority: int, due_ms: int, attempt: int) -> bool:
        shard = shard_of(task_id, self._shard_prefix_len)
        key = f"ready/{shard}/{priority}/{due_ms:012x}-{task_id}-{attempt:04x}"
        return self._bucket.get(key) is not None

    # --- what the processes did ----------------------------------------------------------------

    def submitted(self, task_id: str) -> None:
        """A submit or a requeue was acknowledged."""
        if task_id in self._removed:
            return
        self.acknowledged[task_id] = None
        self.note(f"{task_id} is acknowledged")
        self.check(task_id)

    def executed(self, process: Process, task_id: str, attempt: int) -> None:
        """A handler was called."""
        self.note(f"{process.name} runs {task_id}, attempt {attempt}")
        claim = self._claims.get((task_id, attempt))
        if claim is None or claim[1] != process.name:
            self.fail(NO_CLAIM, task_id, f"attempt {attempt} by {process.name}, the claim is {claim}")
        if (task_id, attempt) in self._executed:
            self.fail(TWICE, task_id, f"attempt {attempt} by {process.name}")
        self._executed[task_id, attempt] = None

    def reads(self, process: Process, key: str) -> None:
        """A process reads an object."""
        if self._owes_read.get(process.name) == key:
            del self._owes_read[process.name]

    def refused(self, process: Process, key: str, body: bytes) -> None:
        """A process learns that a condition of its PUT was not met."""
        if key.startswith("tasks/") and self._sent[process.name][body] > 1:
            self._owes_read[process.name] = key

    def after_turn(self, process: Process) -> None:
        """A process has done at once all that it could."""
        key = self._owes_read.pop(process.name, None)
        if key is not None and not process.is_dying:
            self.fail(UNSETTLED_412, key, f"by {process.name}")
        self._check_error(process)

    def ended(self, process: Process) -> None:
        """A process has crashed or ended."""
        self.note(f"{process.name} is gone")
        self._check_error(process)

    def _check_error(self, process: Process) -> None:
        if process.error is not None:
            self.fail(DIED, process.name, repr(process.error))

    # --- the end -------------------------------------------------------------------------------

    def unrest(self) -> list[str]:
        """What is still to be done: tasks that are not terminal, markers, dead sessions."""
        markers = [key for key, _ in self._bucket.list("ready/", "", 1000)[0]]
        return [*self._unfinished(self.acknowledged), *markers, *self._dead_sessions()]

    def leftovers(self) -> int:
        """How many tasks have ended, but still have their first marker."""
        return sum(
            record.status in TERMINAL and self._has_marker(task_id, record.priority, ident.due_ms(task_id), 0)
            for task_id, record in self.ledgers.items()
        )

    def check_waiting(self, *, due_before_ms: int) -> None:
        """Check that no task waits that has been due for so long."""
        for task_id in self._unfinished(self.acknowledged):
            if ident.due_ms(task_id) < due_before_ms:
                self.fail(STARVED, task_id, _short(self.ledgers.get(task_id)))
                return

    def _unfinished(self, task_ids: Iterable[str]) -> list[str]:
        return [
            task_id
            for task_id in task_ids
            if (record := self.ledgers.get(task_id)) is None or record.status not in TERMINAL
        ]

    def _dead_sessions(self) -> list[str]:
        newest = {self.owners[key].name: key for key in self.sessions}
        return [
            key
            for key, session in self.sessions.items()
            if session.state == "tombstone"
            or self.owners[key].is_over
            or newest[self.owners[key].name] != key
        ]

    def check_ends(self, may_end: Callable[[Record], bool]) -> None:
        """Check at the end that every task came to what its kind can come to."""
        for task_id, record in self.ledgers.items():
            if not may_end(record):
                self.fail(WRONG_END, task_id, f"{_short(record)}: {record.last_error}")


def _wrong_step(before: Record | None, after: Record) -> str | None:
    """Name the invariant that a change of a ledger breaks."""
    if before is None:
        return None if (after.status, after.attempt) in {("running", 1), ("pending", 0)} else BAD_STEP
    if before.status in TERMINAL and after.status != "archived":
        return TERMINAL_CHANGED
    if after.attempt < before.attempt:
        return ATTEMPT_FELL
    if after.status in TERMINAL and before.status not in {"running", *TERMINAL}:
        return None if before.cancel_requested_at else NOT_THE_LEASE
    match before.status, after.status:
        case "pending", "running":
            fits = after.attempt == before.attempt + 1
        case "running", "running":
            fits = after.lease_id == before.lease_id
        case "running", _:
            is_same = after.log[-1].lease_id == before.lease_id and after.attempt == before.attempt
            return None if is_same else NOT_THE_LEASE
        case "pending", "pending":
            fits = after.attempt == before.attempt
        case _:
            fits = after.status == "archived"
    return None if fits and after.rev == before.rev + 1 else BAD_STEP


def _short(record: Record | None) -> str:
    if record is None:
        return "nothing"
    return f"{record.status} (attempt {record.attempt}, available {record.available_at}, rev {record.rev})"
