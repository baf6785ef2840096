import json
from types import SimpleNamespace

import pytest

from orbitset.encoders.repository import read_repository
from orbitset.errors import ConfigError

pytest.importorskip("transformers")
hub = pytest.importorskip("huggingface_hub")
CONFIG = {"model_type": "dinov2", "num_channels": 3}
PROCESSING = {"size": {"shortest_edge": 28}, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.5] * 3}
COMMIT = "c0ffee"


def _saved(folder, **files):
    folder.mkdir(parents=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text)
    return f"hf:{folder}"


def test_a_folder_states_its_images(tmp_path):
    repository = read_repository(
        _saved(tmp_path / "net", config=CONFIG, preprocessor_config=PROCESSING)
    )
    assert (repository.size_px, repository.mean) == (28, (0.1, 0.2, 0.3))
    assert (repository.revision, repository.architecture) == (None, CONFIG)


def test_what_a_processor_prepares_images_by_counts_too(tmp_path):
    processor = {"image_processor": PROCESSING, "tokenizer": {}}
    spec = _saved(tmp_path / "net", config=CONFIG, processor_config=processor)
    assert read_repository(spec).size_px == 28


@pytest.mark.parametrize(
    "change",
    [
        {"size": None},
        {"size": True},
        {"size": -28},
        {"size": "28"},
        {"image_mean": None},
        {"image_mean": "grey"},
        {"image_mean": [0.5, 0.5]},
        {"image_mean": [0.5, 0.5, float("nan")]},
        {"image_std": [0.5, 0.5, 0]},
    ],
)
def test_what_is_not_stated_about_images_is_named(tmp_path, change):
    spec = _saved(tmp_path / "net", config=CONFIG, preprocessor_config={**PROCESSING, **change})
    missing = "size" if "size" in change else "mean and s.d."
    with pytest.raises(ConfigError, match=f"{spec} does not state the {missing} of the images"):
        read_repository(spec)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no config.json"),
        ({"config": CONFIG}, "does not state the size"),
        ({"config": "{"}, "cannot be read as JSON"),
        ({"config": {}}, "has no model_type"),
        ({"config": CONFIG, "preprocessor_config": "[1, 2]"}, "holds no settings"),
        ({"config": CONFIG, "processor_config": {"image_processor": 5}}, "does not state the size"),
    ],
)
def test_a_folder_that_describes_no_network_is_refused(tmp_path, files, words):
    with pytest.raises(ConfigError, match=words):
        read_repository(_saved(tmp_path / "net", **files))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./nowhere", "there is no folder .*nowhere"),
        ("~/nowhere/at/all", "there is no folder /.*nowhere/at/all"),
        ("net/config.json", "is a file; name the folder"),
        ("net@main", "a folder has none; leave out @main"),
        ("two words", "cannot be loaded: Repo id must"),
    ],
)
def test_a_name_that_is_none_is_refused(tmp_path, monkeypatch, name, words):
    _saved(tmp_path / "net", config=CONFIG, preprocessor_config=PROCESSING)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        read_repository(f"hf:{name}")


def _refusal(kind):
    return kind("refused", response=SimpleNamespace(headers={}, request=None))


@pytest.mark.parametrize(
    ("error", "words", "hint"),
    [
        (OSError("no route"), "not on this machine, .* cannot be reached: no route", "hf download"),
        (
            _refusal(hub.errors.RepositoryNotFoundError),
            "no repository me/net that",
            "check the name",
        ),
        (_refusal(hub.errors.RevisionNotFoundError), "hf:me/net has no revision v9", None),
        (_refusal(hub.errors.GatedRepoError), "by those who have asked for it", "hf auth login"),
    ],
)
def test_what_the_hub_refuses_is_said_at_once(monkeypatch, error, words, hint):
    def refuse(*arguments, **options):
        raise error

    monkeypatch.setattr(hub, "model_info", refuse)
    monkeypatch.setattr(
        hub, "hf_hub_download", lambda *arguments, **options: pytest.fail("fetched")
    )
    with pytest.raises(ConfigError, match=words) as refused:
        read_repository("hf:me/net@v9")
    assert hint is None if refused.value.hint is None else hint in refused.value.hint


def test_what_is_in_the_cache_is_not_asked_for(tmp_path, monkeypatch):
    folder = tmp_path / "snapshots" / COMMIT
    _saved(folder, config=CONFIG, preprocessor_config=PROCESSING)
    monkeypatch.setattr(
        hub, "try_to_load_from_cache", lambda name, file, revision: str(folder / file)
    )
    monkeypatch.setattr(hub, "model_info", lambda *arguments, **options: pytest.fail("asked"))
    repository = read_repository("hf:me/net")
    assert (repository.name, repository.revision) == ("me/net", COMMIT)


def test_what_is_not_in_the_cache_is_fetched_once(tmp_path, monkeypatch):
    folder = tmp_path / "snapshots" / COMMIT
    _saved(folder, config=CONFIG, preprocessor_config=PROCESSING)
    fetched = []

    def fetch(name, file, revision):
        fetched.append((name, file, revision))
        return str(folder / file)

    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *arguments, **options: None)
    monkeypatch.setattr(hub, "model_info", lambda *arguments, **options: None)
    monkeypatch.setattr(hub, "hf_hub_download", fetch)
    assert read_repository("hf:me/net").revision == COMMIT
    assert fetched == [
        ("me/net", "config.json", None),
        ("me/net", "preprocessor_config.json", None),
    ]


def test_it_needs_transformers(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ConfigError, match="needs transformers, which is not installed"):
        read_repository("hf:any/thing")
