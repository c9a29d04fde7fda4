"""What each S3 server that can run here does with raw requests, as a Markdown table.

`make matrix` starts the servers one after the other and prints the table that stands in
docs/stores.md. The requests are signed by this package and sent by `http.client`, past
everything that would judge or repeat them::

    PYTHONPATH=tests python tests/matrix.py                  # every server that is installed
    PYTHONPATH=tests python tests/matrix.py seaweedfs ceph   # these
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import md5
from http.client import HTTPConnection
from pathlib import Path

import servers

from buquet._core.sign import Signer, canonical_query, encode_path, payload_hash
from buquet.clock import SystemClock
from buquet.connection import open_store
from buquet.errors import UnfitStore
from buquet.store.probe import probe

RACERS = 64
MISSING_TOOL = {"ceph": "radosgw"}
"""Servers that are not Python packages, and a program of theirs."""

COLUMNS = {
    "seaweedfs": "SeaweedFS 4.47",
    "localstack": "LocalStack 4.13.1",
    "ministack": "MiniStack 1.5.33",
    "ceph": "Ceph RGW 16.2.15",
    "rclone": "rclone 1.75.2",
}


@dataclass(frozen=True)
class Reply:
    """An answer: its status, its S3 error code ("" if it has none), headers and text."""

    status: int
    code: str
    headers: dict[str, str]
    text: str

    def __str__(self) -> str:
        return f"{self.status} {self.code}".strip()


class Bucket:
    """An empty bucket of a server, and raw requests to it.

    Parameters
    ----------
    server:
        The running server.
    """

    def __init__(self, server: servers.Server) -> None:
        self.server = server
        self.name = server.new_bucket()
        self._host = server.endpoint.removeprefix("http://")
        self._signer = Signer(servers.ACCESS_KEY_ID, servers.SECRET_ACCESS_KEY, servers.REGION)

    def put(self, key: str, body: str, **condition: str) -> Reply:
        """Write an object under a condition: `if_match=...`, `if_none_match=...`."""
        return self.request("PUT", key, body, headers=condition)

    def etag(self, key: str, body: str) -> str:
        """Write an object without a condition; return its ETag in quotes."""
        reply = self.put(key, body)
        assert reply.status == 200, reply
        return f'"{reply.headers["etag"].strip(chr(34))}"'

    def listing(self, prefix: str, **options: str) -> Reply:
        """List the bucket."""
        query = {"list-type": "2", "prefix": prefix} | _dashed(options)
        return self.request("GET", "", query=list(query.items()))

    def request(
        self,
        method: str,
        key: str,
        body: str = "",
        *,
        query: list[tuple[str, str]] | None = None,
        headers: dict[str, str] | None = None,
        signer: Signer | None = None,
        skew_s: float = 0.0,
        signed: bool = True,
    ) -> Reply:
        """Send one request on a connection of its own."""
        path = encode_path(f"/{self.name}/{key}")
        sent = _dashed(headers or {})
        if signed:
            at_s = time.time() + skew_s
            digest = payload_hash(body.encode())
            sent |= (signer or self._signer).sign(method, self._host, path, query or [], sent, digest, at_s)
        with closing(HTTPConnection(self._host, timeout=60)) as connection:
            url = f"{path}?{canonical_query(query)}" if query else path
            connection.request(method, url, body.encode(), sent)
            answer = connection.getresponse()
            text = answer.read().decode()
        code = re.search("<Code>(.*?)</Code>", text) if answer.status >= 300 else None
        names = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, code[1] if code else "", names, text)


def _dashed(names: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in names.items()}


# --- the rows: each is a function of a bucket that returns a cell -----------------------------

Cell = Callable[[Bucket], str]
ROWS: dict[str, Cell] = {}


def row(label: str) -> Callable[[Cell], Cell]:
    """Make a function a row of the table."""

    def register(cell: Cell) -> Cell:
        ROWS[label] = cell
        return cell

    return register


def joined(*replies: Reply) -> str:
    """Write answers as statuses, and the code of the last one where it has one."""
    statuses = " / ".join(str(reply.status) for reply in replies)
    return f"{statuses} {replies[-1].code}".strip()


@row("`If-None-Match: *`: new / existing key")
def create(bucket: Bucket) -> str:
    return joined(*(bucket.put("create", body, if_none_match="*") for body in ("1", "2")))


@row("the same, existing key, versioned bucket")
def create_versioned(bucket: Bucket) -> str:
    body = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    reply = bucket.request("PUT", "", body, query=[("versioning", "")])
    if reply.status != 200:
        return "no versioning"
    bucket.put("versioned", "1")
    return str(bucket.put("versioned", "2", if_none_match="*"))


@row("`If-Match`, current ETag: quoted / bare")
def replace(bucket: Bucket) -> str:
    quoted = bucket.put("quoted", "2", if_match=bucket.etag("quoted", "1"))
    bare = bucket.put("bare", "2", if_match=bucket.etag("bare", "1").strip('"'))
    return f"{quoted.status} / {bare.status}"


@row("`If-Match`, older ETag: quoted / bare")
def replace_stale(bucket: Bucket) -> str:
    stale = bucket.etag("stale", "1")
    bucket.etag("stale", "2")
    return joined(*(bucket.put("stale", "3", if_match=etag) for etag in (stale, stale.strip('"'))))


@row("`If-Match`, missing key")
def replace_missing(bucket: Bucket) -> str:
    return str(bucket.put("missing", "1", if_match=f'"{"0" * 32}"'))


@row("`If-Match` with `If-None-Match` / `If-Match: *`")
def replace_oddly(bucket: Bucket) -> str:
    both = bucket.put("odd", "2", if_match=bucket.etag("odd", "1"), if_none_match="*")
    star = bucket.put("odd", "3", if_match="*")
    return f"{both.status} / {star.status}"


@row("DELETE with an older ETag in `If-Match`")
def delete_stale(bucket: Bucket) -> str:
    stale = bucket.etag("delete", "1")
    bucket.etag("delete", "2")
    reply = bucket.request("DELETE", "delete", headers={"if_match": stale.strip('"')})
    gone = bucket.request("GET", "delete").status == 404
    return f"{reply}, {'deleted' if gone else 'kept'}"


@row(f"{RACERS} racing creates: winners; losers see")
def race_creates(bucket: Bucket) -> str:
    return race(bucket, "race-create", {"if_none_match": "*"})


@row(f"{RACERS} racing `If-Match` writes: winners; losers see")
def race_replaces(bucket: Bucket) -> str:
    etag = bucket.etag("race-replace", "0")
    if bucket.put("race-replace", "1", if_match=etag).status != 200:
        etag = etag.strip('"')
    else:
        etag = bucket.etag("race-replace", "0 again")
    return race(bucket, "race-replace", {"if_match": etag})


def race(bucket: Bucket, key: str, condition: dict[str, str]) -> str:
    """Send writes with one condition at the same time; tell how many won and what others were told."""
    with ThreadPoolExecutor(RACERS) as pool:
        replies = list(pool.map(lambda n: bucket.put(key, f"racer {n}", **condition), range(RACERS)))
    losers = Counter(reply.status for reply in replies if reply.status != 200)
    seen = ", ".join(str(status) for status in sorted(losers))
    return f"{sum(reply.status == 200 for reply in replies)}; {seen or 'nothing'}"


@row("LIST sorts")
def list_order(bucket: Bucket) -> str:
    for key in ("order/a/", "order/a-2/"):
        bucket.put(f"{key}x", "")
    keys = re.findall("<Key>(.*?)</Key>", bucket.listing("order/").text)
    return "by bytes" if keys == sorted(keys) else "as a tree (`a/` before `a-2/`)"


@row("LIST right after a PUT")
def list_after_put(bucket: Bucket) -> str:
    seen = []
    for number in range(20):
        bucket.put(f"fresh/{number}", "")
        seen.append(f"fresh/{number}<" in bucket.listing("fresh/").text)
    return "shows it" if all(seen) else f"showed it {sum(seen)} times of {len(seen)}"


@row("a space in `encoding-type=url`")
def list_encoding(bucket: Bucket) -> str:
    bucket.put("space/a b", "")
    found = re.search("<Key>space.*?a(.*?)b</Key>", bucket.listing("space/", encoding_type="url").text)
    return f"`{found[1]}`" if found else "?"


@row("a quote of an ETag in LIST")
def list_etag(bucket: Bucket) -> str:
    bucket.put("etag/a", "")
    found = re.search("<ETag>(.*?)[0-9a-f]{32}", bucket.listing("etag/").text)
    return f"`{found[1] or 'none'}`" if found else "?"


@row("the ETag of a PUT")
def etag_is_md5(bucket: Bucket) -> str:
    return "MD5 of the body" if bucket.etag("md5", "x").strip('"') == md5(b"x").hexdigest() else "other"


@row("`Date` in answers of 200 / 404 / 412")
def date(bucket: Bucket) -> str:
    bucket.put("date", "")
    replies = (bucket.request("GET", key) for key in ("date", "no-date"))
    dated = ["yes" if "date" in reply.headers else "no" for reply in replies]
    failed = bucket.put("date", "", if_none_match="*")
    return " / ".join([*dated, "yes" if "date" in failed.headers else "no"])


@row("wrong secret / clock 1 h off / no signature")
def security(bucket: Bucket) -> str:
    bucket.put("security", "")
    liar = Signer(servers.ACCESS_KEY_ID, "wrong", servers.REGION)
    wrong = bucket.request("GET", "security", signer=liar)
    late = bucket.request("GET", "security", skew_s=-3600)
    anonymous = bucket.request("GET", "security", signed=False)
    return f"{wrong.status} / {late} / {anonymous.status}"


@row("buquet's probe, with the driver")
def buquets_probe(bucket: Bucket) -> str:
    driver = bucket.server.driver
    try:
        asyncio.run(_probe(bucket))
    except UnfitStore as error:
        did = re.search(": it (.*?); it should", str(error))
        return f"refused: it {did[1] if did else error}"
    return f"passed, `{driver}`"


async def _probe(bucket: Bucket) -> None:
    store = open_store(bucket.server.settings(bucket.name), SystemClock())
    try:
        await probe(store, prefix="")
    finally:
        await store.close()


@row("data after SIGKILL (Ceph: of the gateway)")
def durability(bucket: Bucket) -> str:
    bucket.put("durable", "")
    bucket.server.kill()
    bucket.server.start()
    return "kept" if bucket.request("GET", "durable").status == 200 else "lost"


# --- the table ---------------------------------------------------------------------------------


@contextmanager
def running(name: str) -> Iterator[servers.Server]:
    """Run the server of that name in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        server = servers.SERVERS[name](Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()


def column(name: str) -> list[str]:
    """Return a server's cells; each row gets a bucket of its own."""
    with running(name) as server:
        return [cell(Bucket(server)) for cell in ROWS.values()]


def table(columns: dict[str, list[str]]) -> str:
    """Return the Markdown table of these columns."""
    lines = [["", *(COLUMNS[name] for name in columns)], ["---"] * (len(columns) + 1)]
    lines += [[label, *cells] for label, *cells in zip(ROWS, *columns.values(), strict=True)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main(names: list[str]) -> None:
    """Print the table, with its date above it."""
    for name, program in MISSING_TOOL.items():
        if not names and shutil.which(program) is None:
            print(f"{name} is left out: {program} is not installed", file=sys.stderr)
            names = [other for other in COLUMNS if other != name]
    columns = {name: column(name) for name in names or COLUMNS}
    print(f"Measured on {datetime.now(UTC):%Y-%m-%d} by `make matrix`:\n\n{table(columns)}")


if __name__ == "__main__":
    main(sys.argv[1:])
