"""The schedule methods of a queue, on stores of every kind."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from virtual import World, requests, virtual

from buquet import Queue, Schedule
from buquet.errors import InvalidInput, InvalidInputType, NewerLayout, PoisonRecord
from buquet.protocol.keys import Keys
from buquet.store.interface import Always, Store
from buquet.testing.faulty import LostReply, scripted
from buquet.worker import Worker, WorkerRunOptions


@pytest.fixture
def queue(store: Store) -> Queue:
    return Queue(store, Keys("jobs/"))  # type: ignore[arg-type]


NAMES = [
    *(
        "daily-report",
        "a/b",
        "a/last_run",
        "..",
        ".",
        "../..",
        "with two  spaces",
        " x ",
        "a.b",
        "a%2Fb",
        "~",
    ),
    *(
        "täglich",
        "日報",
        "🚀 launch",
        "a+b&c=d?e#f",
        "'\"<>\\",
        "x" * 200,
        "ü" * 200,
        "UPPER",
        "upper",
        "a.json",
    ),
]


async def test_any_readable_name_works_and_is_listed_as_it_was(queue: Queue) -> None:
    await queue.now()
    for name in NAMES:
        await queue.create_schedule(name, "do", {"name": name}, "0 9 * * *")
    listed = await queue.list_schedules()
    assert [schedule.id for schedule in listed] == sorted(NAMES)
    for name in NAMES:
        schedule = await queue.get_schedule(name)
        assert schedule is not None
        assert (schedule.id, schedule.input) == (name, {"name": name})
    task = await queue.trigger_schedule("a/last_run")
    run = await queue.get_schedule_last_run("a/last_run")
    assert run is not None
    assert run.last_task_id == task.id
    assert await queue.get_schedule_last_run("a") is None
    for name in NAMES:
        await queue.delete_schedule(name)
    assert await queue.list_schedules() == []
    page = await queue.store.list("jobs/")
    assert [entry.key for entry in page.entries if "schedule" in entry.key] == []


@pytest.mark.parametrize("name", ["", " ", "x" * 201, "a\nb", "a\0b", "\ud800", "\u200b"])
async def test_other_names_are_refused(name: str) -> None:
    queue = _in_memory()
    for call in (queue.get_schedule, queue.delete_schedule, queue.trigger_schedule, queue.enable_schedule):
        with pytest.raises(InvalidInput):
            await call(name)
    with pytest.raises(InvalidInput):
        await queue.create_schedule(name, "do", {}, "0 9 * * *")


def _in_memory() -> Queue:
    from buquet.clock import SystemClock
    from buquet.store.memory import MemoryStore
    from buquet.store.retry import Retrying

    clock = SystemClock()
    return Queue(Retrying(MemoryStore(clock), clock), Keys())


async def test_create_read_change_delete(queue: Queue) -> None:
    await queue.now()
    assert await queue.get_schedule("s") is None
    assert await queue.list_schedules() == []
    created = await queue.create_schedule(
        "s",
        "do",
        {"n": [1, None]},
        "@hourly",
        60,
        0,
        timezone="Europe/Berlin",
        catch_up="all",
        overlap="skip",
    )
    assert created == Schedule(
        id="s",
        task_type="do",
        input={"n": [1, None]},
        cron="@hourly",
        enabled=True,
        timeout_seconds=60,
        max_retries=0,
        created_at=created.created_at,
        updated_at=created.created_at,
        timezone="Europe/Berlin",
        catch_up="all",
        overlap="skip",
    )
    assert abs(created.created_at - datetime.now(UTC)) < timedelta(seconds=5)
    assert await queue.get_schedule("s") == created
    await queue.disable_schedule("s")
    await queue.disable_schedule("s")
    disabled = await queue.get_schedule("s")
    assert disabled is not None
    assert not disabled.enabled
    assert disabled.updated_at >= created.updated_at
    assert disabled.created_at == created.created_at
    await queue.enable_schedule("s")
    enabled = await queue.get_schedule("s")
    assert enabled is not None
    assert enabled.enabled
    await queue.delete_schedule("s")
    await queue.delete_schedule("s")
    assert await queue.get_schedule("s") is None


async def test_an_id_is_taken_once_unless_it_is_to_be_replaced(queue: Queue) -> None:
    await queue.now()
    first = await queue.create_schedule("s", "do", {}, "0 9 * * *")
    with pytest.raises(InvalidInput, match="'s' already; replace=True"):
        await queue.create_schedule("s", "do", {}, "0 10 * * *")
    assert await queue.get_schedule("s") == first
    second = await queue.create_schedule("s", "do", {}, "0 10 * * *", replace=True)
    assert (second.cron, second.created_at) == ("0 10 * * *", first.created_at)
    assert second.updated_at >= first.updated_at
    assert await queue.get_schedule("s") == second
    await queue.create_schedule("new", "do", {}, "0 10 * * *", replace=True)


async def test_of_ten_that_create_one_id_at_once_one_succeeds(queue: Queue) -> None:
    await queue.now()
    tries = (queue.create_schedule("s", "do", {"n": n}, "0 9 * * *") for n in range(10))
    results = await asyncio.gather(*tries, return_exceptions=True)
    (winner,) = [result for result in results if isinstance(result, Schedule)]
    assert sum(isinstance(result, InvalidInput) for result in results) == 9
    assert await queue.get_schedule("s") == winner


async def test_ten_changes_at_once_all_stand(queue: Queue) -> None:
    await queue.now()
    await queue.create_schedule("s", "do", {}, "0 9 * * *")
    triggers = [queue.trigger_schedule("s") for _ in range(4)]
    toggles = [queue.disable_schedule("s"), queue.enable_schedule("s"), queue.disable_schedule("s")]
    tasks = await asyncio.gather(*triggers)
    await asyncio.gather(*toggles)
    run = await queue.get_schedule_last_run("s")
    assert run is not None
    assert run.last_task_id in {task.id for task in tasks}
    assert {task.status for task in tasks} == {"pending"}


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"cron": "* * * * * *"}, "seconds"),
        ({"cron": "0 0 30 2 *"}, "day of month"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"catch_up": "some"}, "catch_up must be one of latest, all, none"),
        ({"overlap": True}, "overlap must be one of allow, skip"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"max_retries": -1}, "max_retries"),
        ({"task_type": ""}, "task_type"),
        ({"input": {"x": float("nan")}}, r"input\.x"),
    ],
)
async def test_what_makes_no_sense_is_refused_at_once(fields: dict[str, object], match: str) -> None:
    queue = _in_memory()
    given = {"task_type": "do", "input": {}, "cron": "0 9 * * *", **fields}
    with pytest.raises(InvalidInput, match=match):
        await queue.create_schedule("s", **given)  # type: ignore[arg-type]
    assert await queue.get_schedule("s") is None


@pytest.mark.parametrize(
    "fields", [{"cron": 5}, {"cron": ["*"]}, {"timezone": None}, {"timeout_seconds": "5"}, {"task_type": 7}]
)
async def test_wrong_types_are_refused_at_once(fields: dict[str, object]) -> None:
    given = {"task_type": "do", "input": {}, "cron": "0 9 * * *", **fields}
    with pytest.raises(InvalidInputType):
        await _in_memory().create_schedule("s", **given)  # type: ignore[arg-type]


async def test_what_is_missing_is_a_lookup_error() -> None:
    queue = _in_memory()
    for call in (queue.enable_schedule, queue.disable_schedule, queue.trigger_schedule):
        with pytest.raises(LookupError, match="no schedule 's'"):
            await call("s")
    with pytest.raises(LookupError):
        await queue.next_runs("s", 1)
    assert await queue.get_schedule_last_run("s") is None


@virtual
async def test_a_lost_reply_makes_no_second_schedule(world: World) -> None:
    """The resend meets what the first request wrote, and knows it by its nonce."""
    queue = world.queue(plan=scripted([LostReply()]))
    created = await queue.create_schedule("s", "do", {}, "0 9 * * *")
    assert await world.queue().get_schedule("s") == created


# --- triggers ------------------------------------------------------------------------------


@virtual
async def test_a_trigger_submits_at_once_and_moves_nothing(world: World) -> None:
    queue = world.queue()
    await queue.create_schedule("s", "do", {"n": 1}, "0 * * * *", 60, 0, overlap="skip")
    before = await queue.next_runs("s", 2)
    first, second = await queue.trigger_schedule("s"), await queue.trigger_schedule("s")
    assert (first.input, first.timeout_seconds, first.max_retries, first.priority) == ({"n": 1}, 60, 0, 5)
    assert first.id != second.id
    await queue.disable_schedule("s")
    third = await queue.trigger_schedule("s")
    run = await queue.get_schedule_last_run("s")
    assert run is not None
    assert (run.last_task_id, run.next_run_at) == (third.id, None)
    await queue.enable_schedule("s")
    run = await queue.get_schedule_last_run("s")
    assert run is not None
    assert run.last_run_at == third.created_at
    assert [run.next_run_at] == before[:1]
    assert await queue.next_runs("s", 2) == before


@virtual
async def test_a_triggered_task_is_told_even_if_it_cannot_be_noted(world: World) -> None:
    queue = world.queue(
        plan=lambda kind, key: LostReply() if key.startswith("schedule-runs/") else None,
    )
    await queue.create_schedule("s", "do", {}, "0 * * * *")
    task = await queue.trigger_schedule("s")
    assert await queue.get(task.id) == task


@virtual
async def test_the_defaults_of_a_triggered_task_are_those_of_submit(world: World) -> None:
    queue = world.queue()
    await queue.create_schedule("s", "do", None, "0 * * * *")
    task, plain = await queue.trigger_schedule("s"), await queue.submit("do", None)
    for name in ("input", "timeout_seconds", "max_retries", "retry_policy", "priority"):
        assert getattr(task, name) == getattr(plain, name)


@virtual
async def test_next_runs(world: World) -> None:
    queue = world.queue()
    await queue.create_schedule("s", "do", {}, "0 9 * * mon-fri", timezone="Asia/Tokyo")
    found = await queue.next_runs("s", 3)
    # It is Friday, 15 January 2027, 17:00 in Tokyo.
    assert [f"{moment:%a %d %H:%M %Z}" for moment in found] == [
        "Mon 18 09:00 JST",
        "Tue 19 09:00 JST",
        "Wed 20 09:00 JST",
    ]
    for count in (0, -1, 10_001):
        with pytest.raises(InvalidInput, match="count"):
            await queue.next_runs("s", count)


# --- what others have written ----------------------------------------------------------------


@virtual
async def test_broken_objects_are_left_out_told_and_mended(world: World) -> None:
    queue = world.queue()
    await queue.create_schedule("good", "do", {}, "0 9 * * *")
    await queue.create_schedule("moved", "do", {}, "0 9 * * *")
    moved = await queue.store.get("schedules/moved.json")
    assert moved is not None
    await queue.store.put("schedules/elsewhere.json", moved.body, Always())
    await queue.store.put("schedules/broken.json", b"{", Always())
    await queue.store.put("schedules/newer.json", b'{"v": 2}', Always())
    await queue.store.put("schedules/sub/folder", b"?", Always())
    assert [schedule.id for schedule in await queue.list_schedules()] == ["good", "moved"]
    with pytest.raises(PoisonRecord, match=r"schedules/broken\.json"):
        await queue.get_schedule("broken")
    with pytest.raises(PoisonRecord, match="the schedule inside is 'moved'"):
        await queue.get_schedule("elsewhere")
    with pytest.raises(NewerLayout):
        await queue.enable_schedule("newer")
    with pytest.raises(NewerLayout):
        await queue.create_schedule("newer", "do", {}, "0 9 * * *", replace=True)
    with pytest.raises(InvalidInput, match="already"):
        await queue.create_schedule("broken", "do", {}, "0 9 * * *")
    mended = await queue.create_schedule("broken", "do", {}, "0 9 * * *", replace=True)
    assert await queue.get_schedule("broken") == mended
    await queue.delete_schedule("newer")
    assert await queue.list_schedules()


@virtual
async def test_a_broken_last_run_is_written_anew(world: World) -> None:
    queue = world.queue()
    await queue.create_schedule("s", "do", {}, "0 9 * * *")
    await queue.store.put("schedule-runs/s.json", b"{", Always())
    assert await queue.get_schedule_last_run("s") is None
    task = await queue.trigger_schedule("s")
    run = await queue.get_schedule_last_run("s")
    assert run is not None
    assert run.last_task_id == task.id


@virtual
async def test_a_new_schedule_has_not_run_though_one_of_its_name_has(world: World) -> None:
    queue = world.queue()
    await queue.create_schedule("s", "do", {}, "0 9 * * *")
    await queue.trigger_schedule("s")
    kept = await queue.store.get("schedule-runs/s.json")
    assert kept is not None
    await queue.delete_schedule("s")
    # A scheduler that was slow.
    await queue.store.put("schedule-runs/s.json", kept.body, Always())
    await world.clock.sleep(1)
    await queue.create_schedule("s", "do", {}, "0 9 * * *")
    assert await queue.get_schedule_last_run("s") is None
    task = await queue.trigger_schedule("s")
    run = await queue.get_schedule_last_run("s")
    assert run is not None
    assert run.last_task_id == task.id


# --- what it costs ---------------------------------------------------------------------------


@virtual
async def test_requests(world: World) -> None:
    queue = world.queue()
    counts = requests(queue).counts
    await queue.create_schedule("s", "do", {}, "0 9 * * *")
    assert counts == {"put": 1}
    counts.clear()
    await queue.get_schedule("s")
    assert counts == {"get": 1}
    counts.clear()
    await queue.list_schedules()
    assert counts == {"list": 1, "get": 1}
    counts.clear()
    await queue.disable_schedule("s")
    assert counts == {"get": 1, "put": 1}
    counts.clear()
    await queue.trigger_schedule("s")
    assert counts == {"get": 2, "put": 2}


@virtual
async def test_its_tasks_are_tasks_like_others(world: World) -> None:
    queue = world.queue()
    worker = Worker(queue)
    worker.task("do")(_echo)
    await queue.create_schedule("s", "do", {"n": 1}, "0 * * * *")
    task = await queue.trigger_schedule("s")
    await worker.run(WorkerRunOptions(burst=True, with_monitor=False))
    done = await queue.get(task.id)
    assert done is not None
    assert (done.status, done.output) == ("completed", {"n": 1})


async def _echo(given: object) -> object:
    return given
