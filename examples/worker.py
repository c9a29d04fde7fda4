"""Run tasks until Ctrl-C or SIGTERM. See examples/producer.py."""

import asyncio
import logging

from buquet import PermanentError, RetryableError, Worker, connect


async def send_email(input):
    print(f"sending {input['subject']!r} to {input['to']}", flush=True)
    await asyncio.sleep(0.1)
    return {"sent": True}


def resize_image(input, ctx):
    """A plain function: it runs in a thread, so it may block."""
    if not input["name"].endswith(".png"):
        raise PermanentError(f"{input['name']} is no image")
    if ctx.attempt == 1:
        raise RetryableError("the image server is restarting")
    return {"name": input["name"], "width": input["width"]}


async def main():
    logging.basicConfig(level=logging.INFO)
    async with connect() as queue:
        worker = Worker(queue)
        worker.task("send_email")(send_email)
        worker.task("resize_image")(resize_image)
        await worker.run()


asyncio.run(main())
