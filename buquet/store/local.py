"""The embedded store: one SQLite file, for any number of threads and processes of one machine.

The file is in WAL mode with `synchronous=FULL`: what was acknowledged is on the disk, and a
process that is killed leaves nothing to repair. Two daemon threads do the work, so that the
event loop never waits for the disk: one reads, one writes. All writes that wait when the
writer gets the file's lock share one transaction, hence one fsync (*group commit*), and each
is acknowledged after its commit.

The file is created if it is missing, its folder is not: a mistyped path should be told, not
filled. It must be on a local disk, because WAL does not work over a network
(https://www.sqlite.org/wal.html).

Errors: `ConfigError` if the path cannot be used, `StoreError` if the file is damaged or the
store is closed, `Undecided` if it was locked for too long or the disk is full or fails.

Example::

    store = LocalStore("queue.db", SystemClock())
    await store.put("tasks/1", b"{}", Always())
    await store.close()              # may be left out: nothing hangs and nothing is lost
"""

from __future__ import annotations

import asyncio
import atexit
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import closing
from copy import copy
from hashlib import md5
from pathlib import Path
from typing import Any, TypeVar

from buquet.clock import Clock, StoreClock
from buquet.errors import BuquetError, ConfigError, StoreError
from buquet.store.interface import (
    Always,
    Blob,
    Capabilities,
    Condition,
    Entry,
    IfAbsent,
    Page,
    Undecided,
    Written,
    check_fence,
)

T = TypeVar("T")

APPLICATION_ID = 0x62757175
"""Marks a SQLite file as ours ("buqu"), so that another program's is never written to."""

POLL_S = 0.002
"""How often a lock that another process holds is tried, in seconds, on average."""

EXIT_S = 1.0
"""How long the interpreter's exit may wait for stores that were not closed, in seconds."""

# `body` is last, so that the other columns are read without its overflow pages.
SCHEMA = """
CREATE TABLE objects (
    bucket TEXT NOT NULL,
    key TEXT NOT NULL,
    etag TEXT NOT NULL,
    modified_ms INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (bucket, key)
)
"""

PUT = "INSERT INTO objects (bucket, key, etag, modified_ms, body) VALUES (?, ?, ?, ?, ?) ON CONFLICT "
PUT_ALWAYS = (
    PUT + "DO UPDATE SET etag = excluded.etag, modified_ms = excluded.modified_ms, body = excluded.body"
)
PUT_IF_ABSENT = PUT + "DO NOTHING"
PUT_IF_MATCHES = (
    "UPDATE objects SET etag = ?, modified_ms = ?, body = ? WHERE bucket = ? AND key = ? AND etag = ?"
)
GET = "SELECT body, etag, modified_ms FROM objects WHERE bucket = ? AND key = ?"
HEAD = "SELECT key, length(body), etag, modified_ms FROM objects WHERE bucket = ? AND key = ?"
DELETE = "DELETE FROM objects WHERE bucket = ? AND key = ?"
LIST_FROM = (
    "SELECT key, length(body), etag, modified_ms FROM objects WHERE bucket = ? AND key >= ? ORDER BY key"
)
LIST_AFTER = (
    "SELECT key, length(body), etag, modified_ms FROM objects WHERE bucket = ? AND key > ? ORDER BY key"
)

Step = Callable[[sqlite3.Connection], T]


class LocalStore:
    """One bucket in a SQLite file.

    Parameters
    ----------
    path:
        The file; made if it is missing.
    clock:
        The host's clock: `Date` and `LastModified` are its `unix()`.
    bucket:
        The bucket's name; one file may hold several.
    resolution_ms:
        The step of `Date` and `LastModified`, in ms: 1000 truncates them to whole seconds, as
        S3 has them.
    lock_timeout_s:
        How long a request waits for another process's transaction, in seconds.
    """

    capabilities = Capabilities(name="local")

    def __init__(
        self,
        path: str | Path,
        clock: Clock,
        *,
        bucket: str = "buquet",
        resolution_ms: int = 1,
        lock_timeout_s: float = 30.0,
    ) -> None:
        self.time = StoreClock(clock)
        self._clock = clock
        self._bucket = bucket
        self._resolution_ms = resolution_ms
        file = _File(Path(path).expanduser().absolute(), clock, lock_timeout_s)
        self._reader = _Lane(file, "buquet-local-reader", "BEGIN")
        # IMMEDIATE takes the lock first: a transaction that reads, then writes, may be refused.
        self._writer = _Lane(file, "buquet-local-writer", "BEGIN IMMEDIATE")
        for lane in (self._reader, self._writer):
            # For a store that is dropped without `close`; at exit `_end_all` does it.
            weakref.finalize(self, lane.stop).atexit = False

    async def get(self, key: str) -> Blob | None:
        """Read an object; None if the key holds none."""
        row, date_ms = await self._first(GET, key)
        return None if row is None else Blob(key, row[0], row[1], row[2], date_ms)

    async def head(self, key: str) -> Entry | None:
        """Read an object's entry without its body; None if the key holds none."""
        row, _ = await self._first(HEAD, key)
        return None if row is None else Entry(*row)

    async def put(
        self,
        key: str,
        body: bytes,
        condition: Condition,
        *,
        ours: Callable[[bytes], bool] | None = None,  # noqa: ARG002 - one attempt needs none
    ) -> Written | None:
        """Write an object; None if the condition was not met."""
        etag = md5(body, usedforsecurity=False).hexdigest()

        def step(connection: sqlite3.Connection) -> bool:
            if isinstance(condition, IfAbsent):
                check_fence(self.time, condition.read_at)
            statement, values = self._put(key, body, etag, condition)
            return connection.execute(statement, values).rowcount == 1

        written, _ = await self._request(self._writer, step)
        return Written(etag) if written else None

    async def delete(self, key: str, *, read_at: float | None) -> None:
        """Delete an object; a missing one is no error."""
        await self.delete_many([key], read_at=read_at)

    async def delete_many(self, keys: Sequence[str], *, read_at: float | None) -> list[str]:
        """Delete up to `max_keys` objects in one transaction; none ever fails alone."""
        if len(keys) > self.capabilities.max_keys:
            raise ValueError(f"at most {self.capabilities.max_keys} keys in one request, not {len(keys)}")

        def step(connection: sqlite3.Connection) -> None:
            check_fence(self.time, read_at)
            connection.executemany(DELETE, [(self._bucket, key) for key in keys])

        await self._request(self._writer, step)
        return []

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        """List keys under `prefix` that sort after `after`."""
        most = min(limit, self.capabilities.max_keys)
        # Code points sort as their UTF-8 bytes do, which is how SQLite and S3 compare.
        statement, start = (LIST_AFTER, after) if after >= prefix else (LIST_FROM, prefix)

        def step(connection: sqlite3.Connection) -> tuple[tuple[Entry, ...], bool]:
            with closing(connection.execute(statement, (self._bucket, start))) as rows:
                return _page(rows, prefix, most)

        (entries, truncated), date_ms = await self._request(self._reader, step)
        return Page(entries, truncated, date_ms)

    async def create_bucket(self) -> None:
        """Do nothing: a bucket is there when it is first written to."""

    async def refuses_old_signatures(self, key: str) -> bool:  # noqa: ARG002 - none is sent
        """Return True: no request arrives later than its caller waits."""
        return True

    async def close(self) -> None:
        """Finish what is queued, then end the threads and close the file. Safe to call twice."""
        for lane in (self._reader, self._writer):
            await asyncio.wrap_future(lane.stop())

    async def _first(self, statement: str, key: str) -> tuple[Any, int]:
        def step(connection: sqlite3.Connection) -> Any:
            with closing(connection.execute(statement, (self._bucket, key))) as rows:
                return rows.fetchone()

        return await self._request(self._reader, step)

    def _put(self, key: str, body: bytes, etag: str, condition: Condition) -> tuple[str, tuple[Any, ...]]:
        modified_ms = self._now_ms()
        if isinstance(condition, Always):
            return PUT_ALWAYS, (self._bucket, key, etag, modified_ms, body)
        if isinstance(condition, IfAbsent):
            return PUT_IF_ABSENT, (self._bucket, key, etag, modified_ms, body)
        return PUT_IF_MATCHES, (etag, modified_ms, body, self._bucket, key, condition.etag)

    async def _request(self, lane: _Lane, step: Step[T]) -> tuple[T, int]:
        """Have `step` run by `lane`; return its result and the reply's `Date`."""

        def timed(connection: sqlite3.Connection) -> tuple[T, int]:
            return step(connection), self._now_ms()

        sent = self._clock.monotonic()
        result, date_ms = await asyncio.wrap_future(lane.submit(timed))
        self.time.observe(date_ms, resolution_ms=self._resolution_ms, sent=sent)
        return result, date_ms

    def _now_ms(self) -> int:
        now_ms = int(self._clock.unix() * 1000)
        return now_ms - now_ms % self._resolution_ms


def _page(rows: sqlite3.Cursor, prefix: str, most: int) -> tuple[tuple[Entry, ...], bool]:
    """Take up to `most` entries under `prefix`; tell whether another one follows."""
    entries: list[Entry] = []
    for row in rows:  # fetched one by one: nothing beyond the prefix is read
        if not row[0].startswith(prefix):
            break
        if len(entries) == most:
            return tuple(entries), True
        entries.append(Entry(*row))
    return tuple(entries), False


# --- the threads -------------------------------------------------------------------------


class _Job:
    """A step to run, and the future of whoever waits for its result."""

    __slots__ = ("error", "future", "result", "step")

    def __init__(self, step: Step[Any]) -> None:
        self.step = step
        self.future: Future[Any] = Future()
        self.result: Any = None
        self.error: Exception | None = None

    def run(self, connection: sqlite3.Connection) -> None:
        self.error = None
        try:
            self.result = self.step(connection)
        except sqlite3.Error:
            raise  # spoils the transaction, so it is everybody's
        except Exception as error:  # noqa: BLE001 - goes to the one who asked
            self.error = error

    def resolve(self) -> None:
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class _Lane:
    """A daemon thread with its own connection, that runs what is queued in shared transactions.

    Parameters
    ----------
    file:
        The file; opened by the thread when the first step comes, and anew after an error.
    name:
        The thread's name.
    begin:
        The statement that begins a transaction.
    """

    def __init__(self, file: _File, name: str, begin: str) -> None:
        self._file = file
        self._begin = begin
        self._jobs: list[_Job] = []
        self._changed = threading.Condition()  # reentrant: `stop` may come from the collector
        self._stopping = False
        self._ended: Future[None] = Future()
        self._connection: sqlite3.Connection | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _LANES.add(self)

    def submit(self, step: Step[T]) -> Future[T]:
        """Queue a step. If its future is cancelled before the step begins, it is dropped."""
        job = _Job(step)
        with self._changed:
            if self._stopping:
                raise StoreError(f"the store on {self._file.path} is closed: connect again")
            if not self._thread.ident:
                self._thread.start()
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    def stop(self) -> Future[None]:
        """End after what is queued; the future is done when the thread has closed the file."""
        with self._changed:
            if not self._stopping and not self._thread.ident:
                self._ended.set_result(None)
            self._stopping = True
            self._changed.notify()
        return self._ended

    def _run(self) -> None:
        try:
            while self._wait():
                self._transact()
            self._disconnect()
        finally:
            self._end()

    def _end(self) -> None:
        """Leave nobody waiting; something is still queued only if the thread failed."""
        with self._changed:
            self._stopping = True
        for job in self._take():
            job.future.set_exception(StoreError(f"the thread of the store on {self._file.path} has failed"))
        self._ended.set_result(None)

    def _wait(self) -> bool:
        """Wait until something is queued; False when there will not be anything any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._stopping)
            return bool(self._jobs)

    def _take(self) -> list[_Job]:
        """Take what is queued, but for what was cancelled meanwhile."""
        with self._changed:
            jobs, self._jobs = self._jobs, []
        return [job for job in jobs if job.future.set_running_or_notify_cancel()]

    def _transact(self) -> None:
        """Run what is queued as one transaction and acknowledge it, or fail all of it."""
        batch: list[_Job] = []
        try:
            connection = self._connect()
            self._file.patiently(lambda: self._attempt(connection, batch))
        except Exception as error:  # noqa: BLE001 - goes to those who asked
            self._disconnect()
            told = self._file.explain(error) if isinstance(error, sqlite3.Error) else error
            for job in batch or self._take():
                job.future.set_exception(copy(told))  # each its own traceback
        else:
            for job in batch:
                job.resolve()

    def _attempt(self, connection: sqlite3.Connection, batch: list[_Job]) -> None:
        try:
            connection.execute(self._begin)
            batch += self._take()  # only now: all that came while others held the lock
            for job in batch:
                job.run(connection)
            connection.commit()
        except sqlite3.Error:
            connection.rollback()
            raise

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._file.open()
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_LANES: weakref.WeakSet[_Lane] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Close what nobody closed, so that the file is whole without its `-wal`; but never hang."""
    for lane in list(_LANES):  # one by one: only who closes a file last removes its `-wal`
        if wait([lane.stop()], timeout=EXIT_S).not_done:
            return


# --- the file ----------------------------------------------------------------------------


class _File:
    """How the file is opened, and what its errors mean.

    Parameters
    ----------
    path:
        The file's absolute path.
    clock:
        The host's clock.
    lock_timeout_s:
        How long to wait for a lock, in seconds.
    """

    def __init__(self, path: Path, clock: Clock, lock_timeout_s: float) -> None:
        self.path = path
        self._clock = clock
        self._lock_timeout_s = lock_timeout_s

    def open(self) -> sqlite3.Connection:
        """Return a connection to the file, made ready if it is new."""
        try:
            self._check_path()
            return self.patiently(self._open)
        except BuquetError:
            raise
        except (OSError, ValueError) as error:  # no way into a folder, a name too long, a NUL in it
            raise ConfigError(f"{str(self.path)!r} cannot be opened ({error}): name another path") from error

    def _check_path(self) -> None:
        if self.path.is_dir():
            raise ConfigError(f"{self.path} is a folder: name a file in it")
        if not self.path.parent.is_dir():
            raise ConfigError(f"the folder of {self.path} does not exist: create it, or name another path")

    def patiently(self, step: Callable[[], T]) -> T:
        """Call `step` until it is not refused a lock, or the time-out has passed.

        SQLite's own waiting polls ever more rarely, up to every 100 ms, so that a process that
        commits all the time starves the others; and it does not cover the switch to WAL.
        """
        deadline = self._clock.monotonic() + self._lock_timeout_s
        while True:
            try:
                return step()
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or self._clock.monotonic() > deadline:
                    raise
            threading.Event().wait(POLL_S * (0.5 + self._clock.uniform()))

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        ready = self._is_ours(connection)
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"{self.path} is on a file system without shared memory: use a local disk")
        connection.execute("PRAGMA synchronous = FULL")
        if not ready:
            self._create(connection)

    def _create(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        if not self._is_ours(connection):  # another process may have been faster
            connection.execute(SCHEMA)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")

    def _is_ours(self, connection: sqlite3.Connection) -> bool:
        """Tell a file of ours from an empty one; refuse another program's."""
        # In this order: another process that creates the file writes both in one transaction.
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        if application_id == APPLICATION_ID:
            return True
        if application_id or tables:
            raise ConfigError(f"{self.path} is the database of another program: name another path")
        return False

    def explain(self, error: sqlite3.Error) -> BuquetError:
        """Say what an error of SQLite means (https://www.sqlite.org/rescode.html).

        A request that was refused a lock or a page certainly had no effect; an I/O error may
        have come after the commit was written.
        """
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        match code:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return Undecided(f"{self.path} was locked for {self._lock_timeout_s:g} s", applied=False)
            case sqlite3.SQLITE_FULL:
                return Undecided(f"no space is left for {self.path}: free some", applied=False)
            case sqlite3.SQLITE_IOERR:
                return Undecided(f"reading or writing {self.path} failed: {error}")
            case sqlite3.SQLITE_NOTADB:
                return ConfigError(f"{self.path} is not a SQLite file: name another path")
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
                return ConfigError(
                    f"{self.path} cannot be written ({error}): let this user write it and its folder"
                )
            case sqlite3.SQLITE_CORRUPT:
                return StoreError(f"{self.path} is damaged ({error}): restore it from a copy")
        return StoreError(f"SQLite refused a request on {self.path}: {error}")


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
