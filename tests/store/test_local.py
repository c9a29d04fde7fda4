"""The SQLite store's own behaviour; what all stores share is in the contract suite."""

import asyncio
import gc
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from buquet.clock import SystemClock
from buquet.errors import ConfigError, StoreError
from buquet.store.interface import FENCE_S, Always, FenceExpired, IfAbsent, IfMatches, Undecided
from buquet.store.local import LocalStore, _File, _Lane

CLOCK = SystemClock()


class MovableClock(SystemClock):
    """The system's clock, moved on by hand."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s

    def unix(self) -> float:
        return super().unix() + self.ahead_s


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.db"


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario(), 30))


@contextmanager
def locked(path):
    """Hold the file's write lock, as another process in a long transaction does."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


def python(code: str, *arguments: object, **options) -> subprocess.Popen:
    prelude = """
        import asyncio, logging, os, sys
        from buquet.clock import SystemClock
        from buquet.store.interface import *
        from buquet.store.local import LocalStore
        logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns when a busy machine is slow
        store = LocalStore(sys.argv[1], SystemClock())
    """
    source = textwrap.dedent(prelude) + textwrap.dedent(code)
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", source, *map(str, arguments)], **options
    )


# --- what is kept ------------------------------------------------------------------------------


def test_what_was_written_is_there_when_opened_again(path):
    async def write():
        store = LocalStore(path, CLOCK)
        await store.put("a/1", b"one", IfAbsent(None))
        await store.close()

    async def read():
        store = LocalStore(str(path), CLOCK)
        blob = await store.get("a/1")
        await store.close()
        return blob.body

    run(write)
    assert run(read) == b"one"


def test_buckets_of_one_file_are_apart(path):
    async def scenario():
        one, two = LocalStore(path, CLOCK), LocalStore(path, CLOCK, bucket="two")
        assert await one.put("a/1", b"one", IfAbsent(None)) is not None
        assert await two.put("a/1", b"two", IfAbsent(None)) is not None
        await two.delete("a/1", read_at=None)
        blob, page = await one.get("a/1"), await two.list("a/")
        await one.close()
        await two.close()
        return blob.body, page.entries

    assert run(scenario) == (b"one", ())


def test_times_come_from_the_clock_and_can_be_truncated(path):
    async def scenario():
        clock = MovableClock()
        clock.ahead_s = 1e6
        store = LocalStore(path, clock, resolution_ms=1000)
        before = clock.unix()
        await store.put("a/1", b"", Always())
        blob, entry, page = await store.get("a/1"), await store.head("a/1"), await store.list("a/")
        await store.close()
        for at_ms in (blob.modified_ms, blob.date_ms, entry.modified_ms, page.date_ms):
            assert at_ms % 1000 == 0
            assert before * 1000 - 1000 < at_ms <= clock.unix() * 1000
        assert store.time.lower_ms() <= clock.unix() * 1000 <= store.time.upper_ms()
        assert store.time.synced

    run(scenario)


# --- threads -----------------------------------------------------------------------------------


@pytest.fixture
def attempts(monkeypatch):
    """Names of the lanes, one for each transaction that was tried."""
    names = []
    attempt = _Lane._attempt

    def counted(self, connection, batch):
        names.append(self._thread.name)
        attempt(self, connection, batch)

    monkeypatch.setattr(_Lane, "_attempt", counted)
    return names


def test_concurrent_puts_share_a_commit(path, attempts):
    async def scenario():
        store = LocalStore(path, CLOCK)
        await store.put("a/0", b"", Always())
        attempts.clear()
        rounds = 10
        for round_ in range(rounds):
            puts = (store.put(f"a/{round_}-{number}", b"x" * 1000, IfAbsent(None)) for number in range(16))
            assert None not in await asyncio.gather(*puts)
        await store.close()
        return len(attempts) / rounds

    assert run(scenario) <= 3  # one, or two where the first put was committed alone


def test_a_put_that_fails_alone_does_not_harm_those_it_shares_a_commit_with(path):
    async def scenario():
        clock = MovableClock()
        store = LocalStore(path, clock)
        await store.put("a/0", b"", Always())
        old = clock.monotonic()
        clock.ahead_s = FENCE_S + 1
        with locked(path):
            puts = [
                store.put("a/1", b"", Always()),
                store.put("a/2", b"", IfAbsent(old)),
                store.put("a/3", b"", Always()),
            ]
            results = asyncio.gather(*puts, return_exceptions=True)
            await asyncio.sleep(0.1)
        first, second, third = await results
        page = await store.list("a/")
        await store.close()
        assert isinstance(second, FenceExpired)
        assert first is not None
        assert third is not None
        return [entry.key for entry in page.entries]

    assert run(scenario) == ["a/0", "a/1", "a/3"]


def test_the_fence_is_checked_when_the_lock_is_held_not_when_the_request_is_queued(path):
    async def scenario():
        clock = MovableClock()
        store = LocalStore(path, clock, lock_timeout_s=3600)
        await store.put("a/0", b"", Always())
        now = clock.monotonic()
        with locked(path):
            requests = asyncio.gather(
                store.put("a/1", b"", IfAbsent(now)),
                store.delete("a/0", read_at=now),
                store.delete_many(["a/0"], read_at=now),
                return_exceptions=True,
            )
            await asyncio.sleep(0.1)
            clock.ahead_s = FENCE_S + 1
        errors = await requests
        assert [type(error) for error in errors] == [FenceExpired] * 3
        page = await store.list("a/")
        await store.close()
        return [entry.key for entry in page.entries]

    assert run(scenario) == ["a/0"]


def test_neither_reads_nor_the_loop_wait_for_a_writer(path):
    async def scenario():
        store = LocalStore(path, CLOCK)
        await store.put("a/1", b"old", Always())
        with locked(path):
            put = asyncio.ensure_future(store.put("a/1", b"new", Always()))
            began, slowest = time.monotonic(), 0.0
            for _ in range(50):
                tick = time.monotonic()
                assert (await store.get("a/1")).body == b"old"
                await asyncio.sleep(0)
                slowest = max(slowest, time.monotonic() - tick)
            assert not put.done()
            assert time.monotonic() - began < 2
            assert slowest < 0.5
        await put
        body = (await store.get("a/1")).body
        await store.close()
        return body

    assert run(scenario) == b"new"


def test_a_cancelled_put_is_dropped_or_done_and_others_go_on(path):
    async def scenario():
        store = LocalStore(path, CLOCK)
        await store.put("a/0", b"", Always())
        with locked(path):
            puts = [asyncio.ensure_future(store.put(f"a/{n}", b"", Always())) for n in range(1, 4)]
            await asyncio.sleep(0.05)
            puts[1].cancel()
            await asyncio.sleep(0.05)
        results = await asyncio.gather(*puts, return_exceptions=True)
        page = await store.list("a/")
        await store.close()
        assert isinstance(results[1], asyncio.CancelledError)
        return [entry.key for entry in page.entries]

    assert run(scenario) == ["a/0", "a/1", "a/3"]


def test_cancelling_at_any_moment_harms_nobody(path):
    async def scenario():
        store = LocalStore(path, CLOCK)
        for number in range(100):
            put = asyncio.ensure_future(store.put(f"a/{number}", b"", Always()))
            for _ in range(number % 7):
                await asyncio.sleep(0.0001)
            put.cancel()
        written = await store.put("b/1", b"", IfAbsent(None))
        await store.close()
        return written is not None

    assert run(scenario)


def test_several_loops_may_share_a_store(path):
    store = LocalStore(path, CLOCK)
    failures = []

    async def increment():
        for _ in range(20):
            while True:
                blob = await store.get("n")
                if await store.put("n", str(int(blob.body) + 1).encode(), IfMatches(blob.etag)):
                    break

    def thread():
        try:
            asyncio.run(increment())
        except BaseException as error:
            failures.append(error)

    run(lambda: store.put("n", b"0", Always()))
    threads = [threading.Thread(target=thread) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    async def end():
        blob = await store.get("n")
        await store.close()
        return blob.body

    assert failures == []
    assert run(end) == b"80"


def test_close_finishes_what_is_queued_and_is_safe_twice(path):
    async def scenario():
        store = LocalStore(path, CLOCK)
        puts = [asyncio.ensure_future(store.put(f"a/{number}", b"", Always())) for number in range(50)]
        await asyncio.sleep(0)
        await store.close()
        await store.close()
        await asyncio.gather(*puts)
        with pytest.raises(StoreError, match=f"{re.escape(str(path))} is closed"):
            await store.get("a/1")
        with pytest.raises(StoreError, match="closed"):
            await store.put("a/1", b"", Always())
        never_used = LocalStore(path, CLOCK)
        await never_used.close()

    run(scenario)
    assert [file.name for file in path.parent.iterdir()] == ["queue.db"]  # no -wal, no -shm
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM objects").fetchone() == (50,)


def test_a_dropped_store_takes_its_threads_with_it(path):
    async def scenario():
        store = LocalStore(path, CLOCK)
        await store.put("a/1", b"", Always())
        await store.get("a/1")

    run(scenario)
    gc.collect()
    deadline = time.monotonic() + 5
    while any(thread.name.startswith("buquet-local") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- processes ---------------------------------------------------------------------------------


def test_four_processes_lose_no_increment(path):
    code = """
        async def main():
            for _ in range(40):
                while True:
                    blob = await store.get("n")
                    if await store.put("n", b"%d" % (int(blob.body) + 1), IfMatches(blob.etag)):
                        break
            await store.close()
        asyncio.run(main())
    """

    async def start():
        store = LocalStore(path, CLOCK)
        await store.put("n", b"0", Always())
        await store.close()

    async def end():
        store = LocalStore(path, CLOCK)
        blob = await store.get("n")
        await store.close()
        return blob.body

    run(start)
    processes = [python(code, path) for _ in range(4)]
    assert [process.wait(30) for process in processes] == [0] * 4
    assert run(end) == b"160"


def test_processes_that_open_a_new_file_at_once_agree(path):
    code = """
        async def main():
            await asyncio.gather(*(store.put(f"a/{os.getpid()}-{n}", b"", IfAbsent(None)) for n in range(5)))
            return len((await store.list("a/")).entries)
        assert asyncio.run(main()) >= 5
    """
    processes = [python(code, path) for _ in range(6)]
    assert [process.wait(30) for process in processes] == [0] * 6
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM objects").fetchone() == (30,)


def test_a_file_that_another_process_makes_meanwhile_is_used(path, monkeypatch):
    create = _File._create

    def create_behind_another(self, connection):
        monkeypatch.setattr(_File, "_create", create)
        asyncio.run(_touch(path))
        create(self, connection)

    monkeypatch.setattr(_File, "_create", create_behind_another)

    async def scenario():
        store = LocalStore(path, CLOCK)
        entry = await store.head("a/0")
        await store.close()
        return entry is not None

    assert run(scenario)


def test_kill_9_in_mid_write_loses_nothing_that_was_acknowledged(path):
    code = """
        async def writer(name):
            for number in range(1_000_000):
                key = f"a/{os.getpid()}-{name}-{number}"
                await store.put(key, key.encode() * 50, IfAbsent(None))
                print(key, flush=True)
        async def main():
            await asyncio.gather(*(writer(name) for name in range(16)))
        asyncio.run(main())
    """
    acknowledged = []
    for _ in range(3):
        process = python(code, path, stdout=subprocess.PIPE, text=True)
        acknowledged += [process.stdout.readline().strip() for _ in range(300)]
        process.send_signal(signal.SIGKILL)
        acknowledged += [line.strip() for line in process.stdout if line.endswith("\n")]
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL

    async def check():
        store = LocalStore(path, CLOCK)
        for key in acknowledged:
            assert (await store.get(key)).body == key.encode() * 50
        assert await store.put("a/after", b"", IfAbsent(None)) is not None
        await store.close()

    run(check)
    assert len(acknowledged) >= 900
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


IDLE = """
    async def main():
        await store.put("a/1", b"", Always())
        await store.get("a/1")
    asyncio.run(main())
"""
BUSY = """
    async def main():
        global puts
        puts = [asyncio.ensure_future(store.put(f"a/{n}", b"x" * 10000, Always())) for n in range(200)]
        await asyncio.sleep(0)
    asyncio.run(main())
"""


@pytest.mark.parametrize("code", [IDLE, BUSY], ids=["idle", "busy"])
def test_a_process_that_never_closes_ends_quickly_and_without_noise(path, code):
    process = python(code, path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output, _ = process.communicate(timeout=15)
    assert (process.returncode, output) == (0, "")
    assert [file.name for file in path.parent.iterdir()] == ["queue.db"]  # no -wal left behind


def test_a_process_whose_write_waits_for_a_lock_ends_quickly_too(path):
    asyncio.run(_touch(path))
    with locked(path):
        process = python(BUSY, path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        output, _ = process.communicate(timeout=15)
    assert (process.returncode, output) == (0, "")


async def _touch(path):
    store = LocalStore(path, CLOCK)
    await store.put("a/0", b"", Always())
    await store.close()


# --- errors ------------------------------------------------------------------------------------


def test_a_lock_held_for_too_long_is_undecided_and_was_not_applied(path):
    async def scenario():
        store = LocalStore(path, CLOCK, lock_timeout_s=0.2)
        await store.put("a/0", b"", Always())
        with locked(path):
            puts = (store.put(f"a/{number}", b"", Always()) for number in range(3))
            began = time.monotonic()
            errors = await asyncio.gather(*puts, return_exceptions=True)
            assert 0.2 <= time.monotonic() - began < 2
        assert [(type(error), error.applied) for error in errors] == [(Undecided, False)] * 3
        assert len(set(map(id, errors))) == 3
        written = await store.put("a/1", b"", IfAbsent(None))
        await store.close()
        return written is not None

    assert run(scenario)


def test_a_full_disk_is_undecided_and_was_not_applied(path):
    async def scenario():
        store = LocalStore(path, CLOCK)
        await store.put("a/0", b"", Always())

        def limit(connection):
            return connection.execute("PRAGMA max_page_count = 16").fetchone()

        await asyncio.wrap_future(store._writer.submit(limit))
        small = store.put("a/1", b"x", Always())
        big = store.put("a/2", b"x" * 1_000_000, Always())
        with pytest.raises(Undecided, match="no space is left") as caught:
            await big
        await small
        assert caught.value.applied is False
        assert await store.get("a/2") is None
        assert await store.put("a/2", b"x" * 1_000_000, Always()) is not None  # reopened: no limit
        await store.close()

    run(scenario)


def test_a_failing_disk_is_undecided_and_may_have_been_applied(path):
    code = """
        import resource
        async def main():
            await store.put("a/0", b"", Always())
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
            try:
                await store.put("a/1", b"x" * 1_000_000, Always())
            except Undecided as error:
                print(error.applied, error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            print(await store.put("a/2", b"x" * 1_000_000, IfAbsent(None)) is not None)
        asyncio.run(main())
    """
    process = python(code, path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output, _ = process.communicate(timeout=15)
    assert process.returncode == 0, output
    first, second = output.splitlines()
    assert first.startswith(f"None reading or writing {path} failed")
    assert second == "True"


def _foreign_database(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")


@pytest.mark.parametrize(
    ("name", "prepare", "told"),
    [
        ("folder.db", lambda path: path.mkdir(), "is a folder: name a file in it"),
        ("missing/queue.db", lambda path: None, "does not exist: create it"),
        (
            "notes.txt",
            lambda path: path.write_text("not a database\n" * 100),
            "is not a SQLite file: name another",
        ),
        ("other.db", _foreign_database, "is the database of another program: name another path"),
    ],
)
def test_a_path_that_cannot_be_used_says_why_and_what_to_do(tmp_path, name, prepare, told):
    path = tmp_path / name
    prepare(path)
    before = path.read_bytes() if path.is_file() else None

    async def scenario():
        store = LocalStore(path, CLOCK)
        for request in (store.get("a/1"), store.put("a/1", b"", Always())):
            with pytest.raises(ConfigError, match=re.escape(told)) as caught:
                await request
            assert str(path) in str(caught.value)
        await store.close()

    run(scenario)
    assert (path.read_bytes() if path.is_file() else None) == before


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="/proc is where even root may not write")
def test_a_folder_that_cannot_be_written_is_told():
    async def scenario():
        store = LocalStore("/proc/queue.db", CLOCK)
        with pytest.raises(ConfigError, match=r"/proc/queue\.db cannot be written"):
            await store.put("a/1", b"", Always())
        await store.close()

    run(scenario)


@pytest.mark.parametrize("name", ["a\0b.db", "\ud800.db", "x" * 300])
def test_a_path_that_no_file_can_have_is_told(tmp_path, name):
    async def scenario():
        store = LocalStore(tmp_path / name, CLOCK)
        with pytest.raises(ConfigError, match="cannot be opened"):
            await store.get("a/1")
        await store.close()

    run(scenario)


def test_a_folder_that_may_not_be_entered_is_told(path, monkeypatch):
    def refused(_path):
        raise PermissionError(13, "Permission denied")

    async def scenario():
        store = LocalStore(path, CLOCK)
        with monkeypatch.context() as patch:  # root, which tests may run as, may enter any
            patch.setattr(Path, "is_dir", refused)
            with pytest.raises(ConfigError, match=r"queue\.db' cannot be opened .*Permission denied"):
                await store.get("a/1")
        assert await store.get("a/1") is None
        await store.close()

    run(scenario)


def test_an_error_that_nobody_foresaw_reaches_the_caller(path, monkeypatch):
    def fails(_file):
        raise RuntimeError("unforeseen")

    async def scenario():
        store = LocalStore(path, CLOCK)
        with monkeypatch.context() as patch:
            patch.setattr(_File, "open", fails)
            with pytest.raises(RuntimeError, match="unforeseen"):
                await store.get("a/1")
        assert await store.get("a/1") is None
        await store.close()

    run(scenario)


def test_a_thread_that_ends_leaves_nobody_waiting(path, monkeypatch):
    def ends(_file):
        raise SystemExit

    async def scenario():
        store = LocalStore(path, CLOCK)
        monkeypatch.setattr(threading, "excepthook", lambda _: None)
        monkeypatch.setattr(_File, "open", ends)
        with pytest.raises(StoreError, match="has failed"):
            await store.get("a/1")
        with pytest.raises(StoreError, match="closed"):
            await store.get("a/1")
        await store.close()
        store._reader._thread.join()  # its end is reported after it is told

    run(scenario)


def test_a_damaged_file_is_told(path):
    async def fill():
        store = LocalStore(path, CLOCK)
        await asyncio.gather(*(store.put(f"a/{number}", b"x" * 3000, Always()) for number in range(50)))
        await store.close()

    async def read():
        store = LocalStore(path, CLOCK)
        with pytest.raises(StoreError, match=r"queue\.db is damaged") as caught:
            await asyncio.gather(*(store.get(f"a/{number}") for number in range(50)))
        assert not isinstance(caught.value, ConfigError)
        await store.close()

    run(fill)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 20 * 4096)
    run(read)


def test_a_special_name_of_sqlite_is_just_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def scenario():
        store = LocalStore(":memory:", CLOCK)
        await store.put("a/1", b"", Always())
        assert await store.get("a/1") is not None
        await store.close()

    run(scenario)
    assert (tmp_path / ":memory:").is_file()


def test_a_batch_delete_is_one_transaction(path, attempts):
    async def scenario():
        store = LocalStore(path, CLOCK)
        keys = [f"a/{number:04}" for number in range(1000)]
        await asyncio.gather(*(store.put(key, b"", Always()) for key in keys))
        attempts.clear()
        assert await store.delete_many([*keys[:-1], "a/missing"], read_at=None) == []
        assert len(attempts) == 1
        with pytest.raises(ValueError, match="at most 1000"):
            await store.delete_many([*keys, "a/more"], read_at=None)
        page = await store.list("a/")
        await store.close()
        return [entry.key for entry in page.entries]

    assert run(scenario) == ["a/0999"]
