"""Real S3 servers, each a child process on a loopback port of its own.

A server starts when a test first asks for it, keeps its data over `restart()` and `kill()`
where the product does, and is stopped by process id. One that cannot start fails the run and
shows the end of its log::

    server = SeaweedFS(directory)
    server.start()
    bucket = server.new_bucket()
    server.stop()
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import uuid
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from buquet.config import Settings

ACCESS_KEY_ID = "devkey"
SECRET_ACCESS_KEY = "devsecret123"
REGION = "us-east-1"

START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 3  # SeaweedFS waits 10 s for streams to itself; its data is on disk long before
LOG_LINES = 40

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(sysconfig.get_path("scripts"))
LOCALSTACK_PYTHON = ROOT / ".cache/localstack/bin/python"


def free_ports(count: int) -> list[int]:
    """Return `count` loopback ports that nothing listens on.

    They lie below the range that kernels take for outgoing connections (32768 and up on Linux):
    a client that retries while its server is down could otherwise be given the server's own
    port and connect to itself.
    """
    held: list[socket.socket] = []
    while len(held) < count:
        listener = socket.socket()
        try:
            listener.bind(("127.0.0.1", random.randrange(15000, 32000)))
        except OSError:
            listener.close()
        else:
            held.append(listener)
    ports = [listener.getsockname()[1] for listener in held]
    for listener in held:
        listener.close()
    return ports


class Server:
    """A server process. Subclasses say how theirs is run.

    Parameters
    ----------
    directory:
        Where it keeps its data and its log; made if it does not exist.
    """

    name: str
    driver = "s3"
    port_count = 1

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.ports = free_ports(self.port_count)
        self.log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)

    def command(self) -> list[str]:
        """Return the program and its arguments."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return the environment variables that it is configured by."""
        return {}

    @property
    def endpoint(self) -> str:
        """The URL that clients use."""
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def pid(self) -> int:
        """The running process."""
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    def start(self) -> None:
        """Start it and return once it stores objects; raise with its log if it never does."""
        # Nothing is inherited that could configure it: SeaweedFS reads S3_BUCKET, for instance.
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.directory,
                env=inherited | self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait_until_it_stores()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it: SIGTERM, and SIGKILL if it does not go. Does nothing if it does not run."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._ended()

    def kill(self) -> None:
        """End it as a crash would: SIGKILL."""
        assert self._process is not None, f"{self.name} is not running"
        self._process.kill()
        self._process.wait()
        self._ended()

    def restart(self) -> None:
        """Stop it, if it runs, and start it on the same ports and data."""
        self.stop()
        self.start()

    def settings(self, bucket: str) -> Settings:
        """Return what `connect` would make of this server's endpoint and keys."""
        return Settings.resolve(
            self.endpoint,
            bucket,
            REGION,
            driver=self.driver,
            access_key_id=ACCESS_KEY_ID,
            secret_access_key=SECRET_ACCESS_KEY,
            env={},
        )

    def new_bucket(self) -> str:
        """Create an empty bucket and return its name, which no other test has."""
        bucket = f"test-{next(self._numbers):04d}"
        self.client.create_bucket(Bucket=bucket)
        return bucket

    @functools.cached_property
    def client(self) -> Any:
        """Return botocore's S3 client for it, which shares no code with the package under test."""
        return botocore.session.Session().create_client(
            "s3",
            region_name=REGION,
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY_ID,
            aws_secret_access_key=SECRET_ACCESS_KEY,
            config=Config(retries={"max_attempts": 0}, s3={"addressing_style": "path"}),
        )

    def _wait_until_it_stores(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                _store_something(self.client)
            except (BotoCoreError, ClientError) as error:
                exit_code = self._process.poll()
                if exit_code is not None:
                    raise self._failure(f"exited with {exit_code}") from error
                if time.monotonic() > deadline:
                    raise self._failure(f"stores nothing after {START_TIMEOUT_S} s ({error})") from error
                time.sleep(0.05)
            else:
                return

    def _ended(self) -> None:
        self._process = None

    def _failure(self, what: str) -> RuntimeError:
        log = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return RuntimeError("\n".join([f"{self.name} {what}; the end of {self.log}:", *log]))


def _store_something(client: Any) -> None:
    """Write an object: a server may accept connections long before it can."""
    try:
        client.create_bucket(Bucket="is-it-up")
    except ClientError as error:
        if error.response["Error"]["Code"] not in {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}:
            raise
    client.put_object(Bucket="is-it-up", Key="yes", Body=b"")


class SeaweedFS(Server):
    """Durable, checks signatures, and lists in tree order.

    `weed server` rather than `weed mini`: mini's admin service listens on every interface.
    """

    name = "seaweedfs"
    port_count = 8

    def command(self) -> list[str]:
        identity = {
            "name": "dev",
            "credentials": [{"accessKey": ACCESS_KEY_ID, "secretKey": SECRET_ACCESS_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (self.directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
        services = ("s3.port", "s3.port.grpc", "filer.port", "filer.port.grpc")
        services += ("volume.port", "volume.port.grpc", "master.port", "master.port.grpc")
        return [
            str(SCRIPTS / "weed"),
            "-logtostderr=true",
            "server",
            "-dir=.",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            *(f"-{service}={port}" for service, port in zip(services, self.ports, strict=True)),
            "-filer",
            "-s3",
            "-s3.config=s3.json",
            "-s3.iam=false",
            "-s3.autoCreateBucket=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.peers=none",  # no election to wait for
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=128",
            "-volume.max=1000",  # each bucket takes one or more
            "-volume.preStopSeconds=0",
        ]

    def environment(self) -> dict[str, str]:
        # By default a bucket's first write makes seven volumes, and takes that long.
        return {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}

    def _ended(self) -> None:
        super()._ended()
        for port in self.ports:
            for leftover in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                leftover.unlink()


class LocalStack(Server):
    """Answers as AWS does, checks no signatures, and forgets all when it ends.

    It has a virtualenv of its own, because it pins old libraries: `make test` makes it.
    """

    name = "localstack"
    driver = "localstack"

    def command(self) -> list[str]:
        if not LOCALSTACK_PYTHON.exists():
            raise RuntimeError(f"{LOCALSTACK_PYTHON} is missing: run `make localstack` first")
        return [str(LOCALSTACK_PYTHON), "-m", "localstack.runtime.main"]

    def environment(self) -> dict[str, str]:
        return {
            "SERVICES": "s3",
            "EAGER_SERVICE_LOADING": "1",
            "STRICT_SERVICE_LOADING": "1",
            "DISABLE_EVENTS": "1",
            "SKIP_SSL_CERT_DOWNLOAD": "1",
            "DNS_ADDRESS": "0",
            "FILESYSTEM_ROOT": str(self.directory),
            # The default server listens on every interface whatever GATEWAY_LISTEN says.
            "GATEWAY_SERVER": "hypercorn",
            "GATEWAY_LISTEN": self.endpoint.removeprefix("http://"),
        }


class MiniStack(Server):
    """Light, answers as AWS does, durable as it is configured here, checks no signatures."""

    name = "ministack"

    def command(self) -> list[str]:
        return [sys.executable, str(SCRIPTS / "ministack")]

    def environment(self) -> dict[str, str]:
        return {
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(self.ports[0]),
            "SERVICES": "s3",
            "IOT_MTLS_ENABLED": "0",
            "S3_PERSIST": "1",
            "S3_DATA_DIR": str(self.directory / "objects"),
        }


class Rclone(Server):
    """A store that ignores conditions without a word: buquet must refuse it."""

    name = "rclone"

    def command(self) -> list[str]:
        (self.directory / "objects").mkdir(exist_ok=True)
        address = self.endpoint.removeprefix("http://")
        key = f"{ACCESS_KEY_ID},{SECRET_ACCESS_KEY}"
        return [str(SCRIPTS / "rclone"), "serve", "s3", "--addr", address, "--auth-key", key, "objects"]


class Ceph(Server):
    """Ceph's RADOS Gateway, on a cluster of one monitor and one OSD that keeps all in memory.

    Debian's packages radosgw, ceph-mon, ceph-osd and ceph-common; `make ceph` installs them.
    """

    name = "ceph"
    driver = "ceph"
    port_count = 3

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._cluster: list[subprocess.Popen[bytes]] = []

    def command(self) -> list[str]:
        return ["radosgw", "--conf=ceph.conf", "--name=client.rgw", "--foreground"]

    def start(self) -> None:
        if shutil.which("radosgw") is None:
            raise RuntimeError("Ceph is not installed: run `make ceph` as root")
        try:
            if not self._cluster:
                self._start_cluster()
            super().start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End gateway and cluster; the cluster's data is gone with it."""
        super().stop()
        for daemon in reversed(self._cluster):
            daemon.kill()
            daemon.wait()
        self._cluster.clear()

    def _start_cluster(self) -> None:
        _, first, second = self.ports
        cluster, osd = str(uuid.uuid4()), str(uuid.uuid4())
        monitor = f"[v2:127.0.0.1:{first},v1:127.0.0.1:{second}]"
        self._write_conf(cluster, monitor)
        shutil.rmtree(self.directory / "mon", ignore_errors=True)
        for folder in ("mon", "osd", "rgw"):
            (self.directory / folder).mkdir(exist_ok=True)
        self._do("monmaptool", "--create", "--clobber", f"--fsid={cluster}", "--addv", "a", monitor, "monmap")
        self._do("ceph-mon", "--conf=ceph.conf", "--id=a", "--mkfs", "--monmap=monmap")
        self._spawn("ceph-mon", "--id=a")
        self._do("ceph", "--conf=ceph.conf", "osd", "new", osd)
        self._do("ceph-osd", "--conf=ceph.conf", "--id=0", "--mkfs", f"--osd-uuid={osd}")
        self._spawn("ceph-osd", "--id=0")
        keys = (f"--access-key={ACCESS_KEY_ID}", f"--secret-key={SECRET_ACCESS_KEY}")
        user = ("user", "create", "--uid=dev", "--display-name=dev", *keys)
        self._do("radosgw-admin", "--conf=ceph.conf", *user)

    def _write_conf(self, cluster: str, monitor: str) -> None:
        conf = {
            "fsid": cluster,
            "mon host": monitor,
            "public network": "127.0.0.0/8",
            # No keys within the cluster. The gateway asks for an encrypted connection by default,
            # and there is none without keys.
            "auth cluster required": "none",
            "auth service required": "none",
            "auth client required": "none",
            "ms mon client mode": "crc",
            "mon data": self.directory / "mon",
            "osd data": self.directory / "osd",
            "rgw data": self.directory / "rgw",
            # A socket's path may have 107 bytes, fewer than a test's directory.
            "admin socket": "",
            "log file": "",
            "mon cluster log file": "",
            "log to stderr": "true",
            "osd objectstore": "memstore",
            "osd crush chooseleaf type": 0,  # one copy, so one OSD is enough
            "osd pool default size": 1,
            "osd pool default pg num": 4,
            "mon allow pool size one": "true",
            "rgw frontends": f"beast endpoint={self.endpoint.removeprefix('http://')}",
        }
        lines = [f"{name} = {value}" for name, value in conf.items()]
        (self.directory / "ceph.conf").write_text("\n".join(["[global]", *lines, ""]))

    def _do(self, *command: str) -> None:
        """Run one of Ceph's tools to its end."""
        with self.log.open("ab") as log:
            ended = subprocess.run(
                command, cwd=self.directory, stdout=log, stderr=log, timeout=START_TIMEOUT_S, check=False
            )
        if ended.returncode:
            raise self._failure(f"could not be set up: {command[0]} ended with {ended.returncode}")

    def _spawn(self, daemon: str, name: str) -> None:
        with self.log.open("ab") as log:
            command = [daemon, "--conf=ceph.conf", name, "--foreground"]
            process = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=log)
        self._cluster.append(process)


SERVERS = {server.name: server for server in (SeaweedFS, LocalStack, MiniStack, Rclone, Ceph)}
