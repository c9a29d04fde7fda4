"""Submit some tasks and wait for what comes of them.

Start examples/worker.py in another terminal. Both find the queue by the environment; see
examples/.env.example.
"""

import asyncio
from datetime import datetime, timedelta

from buquet import RetryPolicy, connect


async def main():
    async with connect() as queue:
        tasks = [
            await queue.submit("send_email", {"to": "user@example.com", "subject": "Hello!"}),
            # Fails at first, and is tried again after 0.2 s.
            await queue.submit(
                "resize_image",
                {"name": "cat.png", "width": 640},
                retry_policy=RetryPolicy(initial_interval_ms=200),
            ),
            # A type of error that no retry mends.
            await queue.submit("resize_image", {"name": "cat.txt", "width": 640}),
            # Not before a second from now.
            await queue.submit(
                "send_email",
                {"to": "user@example.com", "subject": "Later"},
                schedule_at=datetime.now() + timedelta(seconds=1),
            ),
        ]
        for task in tasks:
            print(f"submitted {task.id} {task.task_type}", flush=True)
        for task in tasks:
            done = await queue.wait(task.id)
            print(f"{done.status} {done.id} after {done.attempt} runs: {done.output or done.last_error}")


asyncio.run(main())
