"""`orbitset cache` lists and clears."""

import json

import pytest

from orbitset.datasets.cache import Key, cached_pixels


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("cups.csv", "hats.csv"):
        cached_pixels(Key("images", 1, name, (name,)), write)


def write(file):
    file.write(bytes(16))
    return (1, 1, 4, 4), []


def test_the_cache_is_listed_and_cleared(orbitset):
    listed = orbitset("cache")
    assert listed.returncode == 0
    assert (
        "cups.csv" in listed.stdout
        and "2 entries" in listed.stdout
        and "limit 50 GB" in listed.stdout
    )
    about = json.loads(orbitset("cache", "--json").stdout)
    assert {entry["source"] for entry in about["entries"]} == {"cups.csv", "hats.csv"}
    assert about["bytes"] == sum(entry["bytes"] for entry in about["entries"]) > 32
    assert json.loads(orbitset("cache", "--older-than", "1", "--json").stdout)["entries"] == []
    assert (
        json.loads(orbitset("cache", "clear", "--older-than", "1", "--json").stdout)["removed"]
        == []
    )
    assert len(json.loads(orbitset("cache", "clear", "--json").stdout)["removed"]) == 2
    assert "0 entries" in orbitset("cache").stdout
