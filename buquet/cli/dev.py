"""`buquet dev`: an S3 server on this machine, for development."""

from __future__ import annotations

from pathlib import Path

import click

from buquet.cli.options import json_flag
from buquet.cli.program import Verb


@click.command(cls=Verb, examples=["buquet dev", "buquet dev --port 9000 --folder /tmp/s3 --bucket jobs"])
@click.option("--port", default=8333, type=click.IntRange(1024, 65_000), help="The port of S3, on 127.0.0.1.")
@click.option(
    "--folder",
    default=".buquet-dev",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the data stay.",
)
@click.option("--bucket", default="buquet", help="A bucket that is created.")
@json_flag
def dev(port: int, folder: Path, bucket: str, *, as_json: bool) -> int:
    """Start SeaweedFS on 127.0.0.1, with a bucket and a queue, until stopped.

    Prints the variables that name the queue. The data stay in the folder for the next time. It needs
    the extra `dev`: pip install '.[dev]' in a clone.
    """
    import asyncio

    from buquet.cli.seaweed import serve

    folder.mkdir(parents=True, exist_ok=True)
    return asyncio.run(serve(port, folder.resolve(), bucket, as_json=as_json))
