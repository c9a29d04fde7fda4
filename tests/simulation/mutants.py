"""Faults planted in the package, one at a time: each must break the invariant that names it.

A mutant is a change of the package's sources, made in a temporary copy; the package itself
knows nothing of it. `mutant_seeds.json` records for each a seed that finds it, and that the
package as it is passes. A change of the package may make a recorded seed blind, because the
run takes another course: then the first of 1,000 seeds that finds the mutant is recorded in
its place. A mutant that none of them finds is an error: the simulation has gone blind.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import buquet
from simulation import oracle

PACKAGE = Path(buquet.__file__).parent
SEEDS = Path(__file__).with_name("mutant_seeds.json")
TESTS = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Patch:
    """A piece of text in a file of the package, which must be there once, and what replaces it."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted fault, and the invariants that name it."""

    name: str
    rules: tuple[str, ...]
    patches: tuple[Patch, ...]


MUTANTS = (
    Mutant(
        "a claim over a running record whose lease is void",
        (oracle.RUNNING_UNMARKED, oracle.BAD_STEP),
        (
            Patch(
                "ledger.py",
                """            case Void():
                return TakenBack() if await self.take_back(loaded) else Lost()
            case Cancelled():""",
                """            case Void():
                return await self._write_claim(record, marker, owner, IfMatches(loaded.etag))
            case Cancelled():""",
            ),
        ),
    ),
    Mutant(
        "a marker key without the attempt",
        (oracle.PENDING_UNMARKED,),
        (
            Patch("protocol/keys.py", "-{marker.attempt:04x}", "-0000"),
            Patch(
                "protocol/transitions.py",
                "if (marker.due_ms, marker.attempt) != (parse_ms(record.available_at), record.attempt):",
                "if marker.due_ms != parse_ms(record.available_at):",
            ),
        ),
    ),
    Mutant(
        "an actor whose CAS failed deletes its own new marker",
        (oracle.PENDING_UNMARKED, oracle.RUNNING_UNMARKED),
        (
            Patch(
                "ledger.py",
                "        return await self.replace(record, loaded.etag, nonce) is not None\n",
                """        if await self.replace(record, loaded.etag, nonce) is not None:
            return True
        marker = next_marker(self.keys, record)
        if marker is not None:
            await self.store.delete(self.keys.marker_key(marker), read_at=self.clock.monotonic())
        return False
""",
            ),
        ),
    ),
    Mutant(
        "a journal that lists the task but another lease",
        (oracle.RUNNING_UNMARKED,),
        (
            Patch(
                "heartbeat.py",
                "        fresh = self.me.acknowledge([entry.lease_id for entry in session.journal])\n",
                """        tasks = {entry.task_id for entry in session.journal}
        fresh = self.me.acknowledge([e.lease_id for e in self.me.snapshot() if e.task_id in tasks])
""",
            ),
        ),
    ),
    Mutant(
        "the current in-flight set marked as journaled instead of the snapshot sent",
        (oracle.RUNNING_UNMARKED,),
        (
            Patch(
                "heartbeat.py",
                "self.me.acknowledge([entry.lease_id for entry in session.journal])",
                "self.me.acknowledge([entry.lease_id for entry in self.me.snapshot()])",
            ),
        ),
    ),
    Mutant(
        "an entry that leaves in-flight when the handler returns",
        (oracle.RUNNING_UNMARKED,),
        (
            Patch(
                "worker/run.py",
                "await self._settler.settle(held, outcome)",
                "held.owner.leave(held.lease_id) or await self._settler.settle(held, outcome)",
            ),
        ),
    ),
    Mutant(
        "forgetting on OutcomeUnknown",
        (oracle.RUNNING_UNMARKED,),
        (
            Patch(
                "worker/settler.py",
                """            except (Unavailable, OutcomeUnknown) as error:
""",
                """            except (Unavailable, OutcomeUnknown) as error:
                if isinstance(error, OutcomeUnknown):
                    held.owner.leave(held.lease_id)
                    return
""",
            ),
        ),
    ),
    Mutant(
        "a new incarnation that keeps the in-flight set",
        (oracle.FOREIGN_LEASE,),
        (
            Patch(
                "heartbeat.py",
                """        self.me.is_alive = False
        self.me = self._incarnate()
        await self.create()
""",
                """        self.me.is_alive = False
        held, self.me = self.me, self._incarnate()
        self.me._in_flight = held._in_flight
        await self.create()
""",
            ),
        ),
    ),
    Mutant(
        "in-flight keyed by task id",
        (oracle.RUNNING_UNMARKED,),
        (
            Patch(
                "incarnation.py",
                "self._in_flight[lease_id] = Entry(task_id, lease_id, lease_expires_at)",
                """if task_id in self._in_flight:
                self._unjournaled.pop(self._in_flight[task_id].lease_id, None)
            self._in_flight[task_id] = Entry(task_id, lease_id, lease_expires_at)
            self._task_of = {**getattr(self, "_task_of", {}), lease_id: task_id}""",
            ),
            Patch(
                "incarnation.py",
                "self._in_flight.pop(lease_id, None)",
                """gone = self._in_flight.pop(getattr(self, "_task_of", {}).get(lease_id), None)
            self._unjournaled.pop(getattr(gone, "lease_id", None), None)""",
            ),
            Patch(
                "incarnation.py",
                "return lease_id in self._in_flight or lease_id in self._claiming",
                """return lease_id in self._claiming or any(
                entry.lease_id == lease_id for entry in self._in_flight.values()
            )""",
            ),
        ),
    ),
    Mutant(
        "a monitor that takes 412 as handled",
        (oracle.RUNNING_UNMARKED,),
        (
            Patch(
                "watch.py",
                "            if await self._ledger.take_back(loaded):\n",
                "            if await self._ledger.take_back(loaded) or True:\n",
            ),
        ),
    ),
    Mutant(
        '"still our lease" without the status',
        (oracle.NOT_THE_LEASE, oracle.TERMINAL_CHANGED),
        (
            Patch(
                "protocol/transitions.py",
                "if record.status == TaskStatus.Running and record.lease_id == lease_id:",
                "if lease_id in (record.lease_id, record.log[-1].lease_id):",
            ),
        ),
    ),
    Mutant(
        "judging a marker by a remembered ledger",
        (oracle.PENDING_UNMARKED, oracle.RUNNING_UNMARKED, oracle.SUBMIT_LOST),
        (
            Patch(
                "ledger.py",
                "            body, ledger = None, await self.store.get(ledger_key)\n",
                """            remembered = self.__dict__.setdefault("_remembered", {})
            if ledger_key not in remembered:
                remembered[ledger_key] = await self.store.get(ledger_key)
            body, ledger = None, remembered[ledger_key]
""",
            ),
            Patch(
                "ledger.py",
                """                self.store.get(self.keys.marker_key(marker)), self.store.get(ledger_key)
            )
""",
                """                self.store.get(self.keys.marker_key(marker)), self.store.get(ledger_key)
            )
            self.__dict__.setdefault("_remembered", {})[ledger_key] = ledger
""",
            ),
        ),
    ),
    Mutant(
        "a session deleted without a tombstone",
        (oracle.NOT_BURIED,),
        (
            Patch(
                "watch.py",
                """        written = await self._store.put(
            key, encode(tombstone), IfMatches(etag), ours=lambda body: body == encode(tombstone)
        )
""",
                "        written: object = etag\n",
            ),
        ),
    ),
    Mutant(
        "a resent session create",
        (oracle.SECOND_LIFE,),
        (
            Patch(
                "heartbeat.py",
                "await self._store.once.put(key, encode(session), IfAbsent(self._clock.monotonic()))",
                "await self._store.put(key, encode(session), IfAbsent(self._clock.monotonic()))",
            ),
            Patch(
                "heartbeat.py",
                "        except Undecided:\n            etag = await",
                "        except (Undecided, StoreError):\n            etag = await",
            ),
        ),
    ),
    Mutant(
        "requeue in place",
        (oracle.TERMINAL_CHANGED,),
        (
            Patch(
                "deadletters.py",
                "        if record.requeued_as is None:\n",
                """        if record.status == TaskStatus.Failed:
            import msgspec

            again = msgspec.structs.replace(
                record, rev=record.rev + 1, nonce=fresh.nonce, status="pending", completed_at=None
            )
            await ledger._prepare(again)
            if await ledger.replace(again, loaded.etag, again.nonce) is None:
                continue
            return again
        if record.requeued_as is None:
""",
            ),
        ),
    ),
    Mutant(
        "archive without the wait",
        (oracle.REVIVED,),
        (
            Patch("archiver.py", "AFTER_ARCHIVING_S = 3600", "AFTER_ARCHIVING_S = 0"),
            Patch("archiver.py", "MARKER_BODY_LIVES_S = 25 * 60", "MARKER_BODY_LIVES_S = 0"),
        ),
    ),
    Mutant(
        "new marker after the pending write",
        (oracle.PENDING_UNMARKED,),
        (
            Patch(
                "ledger.py",
                """            await self._prepare(after)
            if await self.replace(after, etag, outcome.nonce) is not None:
""",
                """            if await self.replace(after, etag, outcome.nonce) is not None:
                await self._prepare(after)
""",
            ),
        ),
    ),
    Mutant(
        "completion without If-Match",
        (oracle.NOT_THE_LEASE, oracle.TERMINAL_CHANGED, oracle.ATTEMPT_FELL),
        (
            Patch(
                "ledger.py",
                "            if await self.replace(after, etag, outcome.nonce) is not None:\n",
                "            key = self.keys.ledger(after.id)\n"
                "            if await self.store.put(key, encode(after), Always()) is not None:\n",
            ),
        ),
    ),
    Mutant(
        "412 after a lost reply taken as lost",
        (oracle.UNSETTLED_412,),
        (
            Patch(
                "store/retry.py",
                "if written is not None or not call.maybe_applied:\n",
                "if written is not None or not call.maybe_applied or key:\n",
            ),
        ),
    ),
    Mutant(
        '409 taken as "exists"',
        (oracle.SUBMIT_LOST, oracle.PENDING_UNMARKED),
        (
            Patch(
                "store/retry.py",
                "            except (Undecided, FenceExpired, StoreError) as error:\n",
                """            except (Undecided, FenceExpired, StoreError) as error:
                if "409" in str(error):
                    return None
""",
            ),
        ),
    ),
    Mutant(
        "a listing that a page of future markers blocks",
        (oracle.STARVED,),
        (
            Patch(
                "worker/finder.py",
                "                self._after = self._beyond(page, shown, now_ms)\n                continue\n",
                "                self._move_to(self._number)\n                break\n",
            ),
        ),
    ),
)


@contextmanager
def planted(mutant: Mutant) -> Iterator[Path]:
    """Copy the package, plant the fault, and yield the folder to import it from."""
    with tempfile.TemporaryDirectory(prefix="buquet-mutant-") as folder:
        copy = Path(folder) / "buquet"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.c"))
        for patch in mutant.patches:
            file = copy / patch.file
            text = file.read_text()
            if text.count(patch.old) != 1:
                raise LookupError(
                    f"{mutant.name}: {patch.file} has {text.count(patch.old)} times the text that the patch "
                    f"replaces; write the patch anew:\n{patch.old}"
                )
            file.write_text(text.replace(patch.old, patch.new))
        yield Path(folder)


@dataclass(frozen=True, slots=True)
class Found:
    """The seed that found a mutant, the invariant that it broke, and how."""

    seed: int
    rule: str
    message: str


def find(mutant: Mutant, seeds: Iterable[int]) -> Found | None:
    """Plant a mutant and run seeds until one breaks an invariant that names it.

    Raises
    ------
    LookupError
        The package has changed: the text that a patch replaces is not there any more.
    """
    with planted(mutant) as folder:
        ran = subprocess.run(
            [sys.executable, "-c", "from simulation.mutants import search; search()"],
            env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{TESTS}", "PYTHONSAFEPATH": "1"},
            input=json.dumps([list(seeds), mutant.rules]),
            capture_output=True,
            text=True,
            check=False,
        )
    if ran.returncode != 0:
        raise RuntimeError(f"{mutant.name}: {ran.stderr}")
    found = json.loads(ran.stdout)
    return None if found is None else Found(*found)


def search() -> None:
    """In the process that runs a mutant: read seeds and rules, write the first seed that breaks one."""
    from simulation.scenario import run

    seeds, rules = json.load(sys.stdin)
    for seed in seeds:
        breach = run(seed).breach
        if breach is not None and breach.rule in rules:
            print(json.dumps([seed, breach.rule, str(breach)]))
            return
    print("null")


def recorded() -> dict[str, int]:
    """The recorded seeds by the mutants' names."""
    return dict(json.loads(SEEDS.read_text())) if SEEDS.exists() else {}


def record(seeds: dict[str, int]) -> None:
    """Record seeds."""
    SEEDS.write_text(json.dumps(dict(sorted(seeds.items())), indent=2) + "\n")
