"""What Ceph has to show: the contract suite, the probe, and a queue with a worker.

A job of its own (`make test-ceph`), because it needs Debian's Ceph: by its name pytest does not
collect this file unless it is told to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
import servers

from buquet import Worker, WorkerRunOptions, connect
from buquet.clock import SystemClock
from buquet.connection import open_store
from buquet.errors import UnfitStore
from buquet.protocol.task import TaskStatus
from buquet.store.probe import probe
from buquet.store.retry import Retrying
from buquet.testing import contract

TASKS = 100


@pytest.fixture
def ceph(running: Callable[[str], servers.Server]) -> servers.Server:
    return running("ceph")


@pytest.fixture
def ceph_store(ceph: servers.Server, runner) -> Iterator[Retrying]:
    store = open_store(ceph.settings(ceph.new_bucket()), SystemClock())
    yield store
    runner.run(store.close())


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
async def test_contract(check: contract.Check, ceph_store: Retrying) -> None:
    await check(ceph_store)


async def test_the_probe_passes(ceph_store: Retrying) -> None:
    await probe(ceph_store, prefix="")
    assert (await ceph_store.list("probe/")).entries == ()


def arguments(ceph: servers.Server) -> dict[str, str]:
    keys = {"access_key_id": servers.ACCESS_KEY_ID, "secret_access_key": servers.SECRET_ACCESS_KEY}
    return {"endpoint": ceph.endpoint, "region": servers.REGION, **keys}


async def test_the_generic_driver_is_refused_and_told_which_to_take(ceph: servers.Server) -> None:
    with pytest.raises(UnfitStore, match=r"refused an If-Match with the current ETag.*BUQUET_DRIVER=ceph"):
        await connect(bucket=ceph.new_bucket(), **arguments(ceph))


async def test_a_versioned_bucket_is_refused_because_a_create_overwrites_there(ceph: servers.Server) -> None:
    bucket = ceph.new_bucket()
    ceph.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    with pytest.raises(UnfitStore, match="overwrote an object although If-None-Match"):
        await connect(bucket=bucket, driver="ceph", **arguments(ceph))


async def test_every_task_is_run_once_by_one_of_two_workers(ceph: servers.Server) -> None:
    async with connect(bucket="a-queue", driver="ceph", create_bucket=True, **arguments(ceph)) as queue:
        submitted = [await queue.submit("double", {"number": number}) for number in range(TASKS)]
        started: list[int] = []
        workers = [Worker(queue, f"worker-{number}", concurrency=8) for number in range(2)]
        for worker in workers:

            @worker.task("double")
            async def double(input: dict[str, int]) -> int:
                started.append(input["number"])
                return 2 * input["number"]

        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker.run(WorkerRunOptions(burst=True)))
        done = [await queue.get(task.id) for task in submitted]
        assert [task and (task.status, task.output) for task in done] == [
            (TaskStatus.Completed, 2 * number) for number in range(TASKS)
        ]
        assert sorted(started) == list(range(TASKS))
        assert (await queue.store.list("ready/")).entries == ()
