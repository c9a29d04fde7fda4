"""Runs SeaweedFS on the loopback interface for `buquet dev`.

It is `weed server`, because the admin service of `weed mini` listens on every interface.

Errors: `click.ClickException` if it is not installed, the port is taken, or it does not start.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import sysconfig
from asyncio.subprocess import Process
from pathlib import Path

import click

from buquet.cli import output
from buquet.cli.program import INTERRUPTED, STORE
from buquet.clock import SystemClock
from buquet.connection import connect
from buquet.errors import BuquetError
from buquet.signals import on_stop_signal

ACCESS_KEY_ID = "devkey"
SECRET_ACCESS_KEY = "devsecret123"  # noqa: S105 - it is printed, and for this machine alone
REGION = "us-east-1"

START_S = 60.0
LOOK_S = 0.2
STOP_S = 3.0
"""It waits 10 s for streams to itself; its data are on the disk long before."""
LOG_LINES = 5

SERVICES = (
    *("s3.port", "s3.port.grpc", "filer.port", "filer.port.grpc"),
    *("volume.port", "volume.port.grpc", "master.port", "master.port.grpc"),
)


async def serve(port: int, folder: Path, bucket: str, *, as_json: bool) -> int:
    """Run the server until a signal; return the exit code.

    Parameters
    ----------
    port:
        The port of S3.
    folder:
        Where the data stay, an absolute path.
    bucket:
        Created, with a queue in it.
    as_json:
        Print the variables as JSON.
    """
    weed, ports = _program(), _ports(port)
    stopping = asyncio.Event()
    with on_stop_signal(stopping.set) as signals:
        process = await _start(weed, folder, ports)
        ended, stopped = asyncio.create_task(process.wait()), asyncio.create_task(stopping.wait())
        opening = asyncio.create_task(_open(port, bucket))
        try:
            await asyncio.wait({ended, stopped, opening}, return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
                _tell(port, bucket, folder, as_json=as_json)
                await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise _failure(f"SeaweedFS ended by itself ({process.returncode})", folder)
        except BuquetError as error:
            raise _failure(f"SeaweedFS did not start ({error})", folder) from error
        finally:
            opening.cancel()
            await _stop(process, ports)
            stopped.cancel()
            await asyncio.wait({ended, stopped, opening})
    return INTERRUPTED if signal.SIGINT in signals.received else 0


def _program() -> str:
    beside = Path(sysconfig.get_path("scripts"), "weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise click.UsageError("SeaweedFS is not installed: pip install '.[dev]' in a clone")
    return found


class ServerError(click.ClickException):
    """The server cannot run."""

    exit_code = STORE


def _ports(port: int) -> list[int]:
    """Return the port asked for, and free ones above it for the server's other services."""
    if not _is_free(port):
        raise click.UsageError(f"port {port} is taken: stop what listens there, or say --port")
    above = (other for other in range(port + 1, 65_536) if _is_free(other))
    return [port, *(next(above) for _ in SERVICES[1:])]


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


async def _start(weed: str, folder: Path, ports: list[int]) -> Process:
    identity = {
        "name": "dev",
        "credentials": [{"accessKey": ACCESS_KEY_ID, "secretKey": SECRET_ACCESS_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    # Of the environment nothing that would configure it: it reads S3_BUCKET, for instance.
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with (folder / "server.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            weed,
            "-logtostderr=true",
            "server",
            f"-dir={folder}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            *(f"-{service}={port}" for service, port in zip(SERVICES, ports, strict=True)),
            *("-filer", "-s3", f"-s3.config={folder / 's3.json'}", "-s3.iam=false"),
            *("-s3.autoCreateBucket=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            *("-master.peers=none", "-master.telemetry=false", "-master.volumeSizeLimitMB=128"),
            *("-volume.max=100", "-volume.preStopSeconds=0"),
            cwd=folder,
            # By default the first write to a bucket makes seven volumes, and takes that long.
            env=inherited | {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for this program, which stops it
        )


async def _open(port: int, bucket: str) -> None:
    """Create the bucket and the queue as soon as the server stores anything."""
    clock = SystemClock()
    deadline = clock.monotonic() + START_S
    while True:
        try:
            async with connect(
                f"http://127.0.0.1:{port}",
                bucket,
                REGION,
                access_key_id=ACCESS_KEY_ID,
                secret_access_key=SECRET_ACCESS_KEY,
                create_bucket=True,
            ):
                return
        except BuquetError:
            # It listens before it can store, and then answers with errors of its own.
            if clock.monotonic() > deadline:
                raise
            await clock.sleep(LOOK_S)


def _tell(port: int, bucket: str, folder: Path, *, as_json: bool) -> None:
    variables = {
        "S3_ENDPOINT": f"http://127.0.0.1:{port}",
        "S3_BUCKET": bucket,
        "S3_REGION": REGION,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
    }
    if as_json:
        output.emit(variables)
        return
    for name, value in variables.items():
        click.echo(f"export {name}={value}")
    sys.stdout.flush()
    click.echo(f"# SeaweedFS runs; its data are in {folder}. Ctrl-C stops it.", err=True)


async def _stop(process: Process, ports: list[int]) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()
    _remove_sockets(ports)


def _remove_sockets(ports: list[int]) -> None:
    """Remove what the server leaves behind."""
    for port in ports:
        for leftover in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108 - where it puts them
            leftover.unlink(missing_ok=True)


def _failure(what: str, folder: Path) -> click.ClickException:
    log = folder / "server.log"
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return ServerError(f"{what}; the end of {log}: {' / '.join(lines)}")
