"""Drivers by name and by endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from buquet.config import Settings
from buquet.errors import UnknownDriver
from buquet.store import registry
from buquet.store.driver import Driver

BUILT_IN = ["aws", "ceph", "localstack", "minio", "ministack", "r2", "s3", "seaweedfs"]


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_driver_is_found_under_its_name(name):
    driver = registry.load(name)
    assert isinstance(driver, Driver)
    assert driver.name == name


def test_an_unknown_name_lists_the_installed_ones():
    with pytest.raises(UnknownDriver, match=", ".join(BUILT_IN)):
        registry.load("s4")


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package that has drivers of its own, as pip would lay it out."""
    (tmp_path / "acme_s3.py").write_text(
        "from buquet.store.registry import load\n"
        "import dataclasses\n"
        "DRIVER = dataclasses.replace(load('s3'), name='acme', write_interval_s=0.5)\n"
        "NONE = object()\n"
    )
    info = tmp_path / "acme_s3-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-s3\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[buquet.drivers]\nacme = acme_s3:DRIVER\nnone = acme_s3:NONE\ngone = acme_gone:DRIVER\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("third_party")
def test_a_third_party_adds_a_driver():
    assert registry.load("acme").capabilities.write_interval_s == 0.5
    assert "acme" in registry.names()


@pytest.mark.usefixtures("third_party")
@pytest.mark.parametrize(
    ("name", "said"), [("none", "is not a buquet Driver"), ("gone", "cannot be imported")]
)
def test_what_is_installed_but_no_driver(name, said):
    with pytest.raises(UnknownDriver, match=said):
        registry.load(name)


@pytest.mark.parametrize(
    ("endpoint", "driver", "name"),
    [
        (None, None, "aws"),
        ("https://s3.eu-west-1.amazonaws.com", None, "aws"),
        ("https://s3.cn-north-1.amazonaws.com.cn", None, "aws"),
        ("https://amazonaws.com.example", None, "s3"),
        ("https://notamazonaws.com", None, "s3"),
        ("https://0123.r2.cloudflarestorage.com", None, "r2"),
        ("https://0123.eu.r2.cloudflarestorage.com/", None, "r2"),
        ("http://localhost:4566", None, "s3"),
        ("http://localhost:4566", "minio", "minio"),
        (None, "r2", "r2"),
    ],
)
def test_selection(endpoint, driver, name):
    assert registry.select(Settings.resolve(endpoint, "jobs", driver=driver, env={})) == name
