import json
import socket

import pytest
import torch

from orbitset.encoders import EncoderConfig, build_encoder
from orbitset.encoders.hugging_face import pretrained_network, untrained_network
from orbitset.encoders.named import look_at
from orbitset.encoders.repository import read_repository
from orbitset.errors import ConfigError

transformers = pytest.importorskip("transformers")
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
PROCESSING = {
    "crop_size": {"height": 28, "width": 28},
    "size": {"shortest_edge": 32},
    "image_mean": [0.1, 0.2, 0.3],
    "image_std": [0.5, 0.6, 0.7],
}


def _saved(folder, network, processing=PROCESSING):
    network.save_pretrained(folder)
    if processing is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processing))
    return f"hf:{folder}"


def _network(kind, **settings):
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[kind](**{**SMALL, "image_size": 28, **settings})
    return transformers.AutoModel.from_config(config).eval()


@pytest.fixture(scope="module")
def dino(tmp_path_factory):
    return _saved(tmp_path_factory.mktemp("hub") / "dino", _network("dinov2", patch_size=14))


@torch.no_grad()
def test_features_are_those_of_plain_transformers(dino):
    """At another size than the network's, too."""
    network = transformers.AutoModel.from_pretrained(dino.removeprefix("hf:"))
    for size_px in (28, 42):
        images = torch.rand(3, 3, size_px, size_px)
        mean, sd = (torch.tensor(PROCESSING[k])[:, None, None] for k in ("image_mean", "image_std"))
        output = network(pixel_values=(images - mean) / sd)
        expected = {
            "auto": output.pooler_output,
            "pooled": output.pooler_output,
            "cls": output.last_hidden_state[:, 0],
            "mean": output.last_hidden_state[:, 1:].mean(1),
        }
        for features, values in expected.items():
            torch.testing.assert_close(pretrained_network(dino, features)(images), values)


@pytest.mark.parametrize("code_norm", ["unit", "none"])
def test_codes_begin_as_the_features(dino, code_norm):
    config = EncoderConfig(
        backbone=dino,
        is_pretrained=True,
        head="features",
        code_size=None,
        code_norm=code_norm,
        channels=(4, 8),
    )
    model = build_encoder(config, in_channels=3, size_px=28).eval()
    images = torch.rand(4, 3, 28, 28)
    features = pretrained_network(dino, "auto")(images)
    if code_norm == "unit":
        features = torch.nn.functional.normalize(features, dim=1)
    assert model.code_size == 32
    torch.testing.assert_close(model.encode(images), features)


def test_it_states_the_size_of_its_images(dino):
    assert (look_at(dino).size_px, look_at(dino).is_pretrained) == (28, True)


def test_grey_images_are_shown_in_three_channels(dino):
    network = pretrained_network(dino, "auto")
    grey = torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(network(grey), network(grey.expand(-1, 3, -1, -1)))


def test_it_is_built_again_without_its_repository(dino, tmp_path):
    config = EncoderConfig(backbone="hf:gone", features="mean", channels=(4, 8), code_size=8)
    kept = pretrained_network(dino, "mean").architecture
    kept = json.loads(json.dumps(kept))
    again = build_encoder(config, in_channels=3, size_px=28, architecture=kept)
    again.backbone.load_state_dict(pretrained_network(dino, "mean").state_dict())
    images = torch.rand(2, 3, 28, 28)
    torch.testing.assert_close(
        again.eval().features(images), pretrained_network(dino, "mean").eval()(images)
    )


def test_a_pooler_that_was_never_trained_is_not_used(tmp_path):
    network = _network("vit", intermediate_size=32, patch_size=14)
    network.pooler = None
    spec = _saved(tmp_path / "vit", network)
    images = torch.rand(2, 3, 28, 28)
    mean, sd = (torch.tensor(PROCESSING[k])[:, None, None] for k in ("image_mean", "image_std"))
    expected = network(pixel_values=(images - mean) / sd).last_hidden_state[:, 0]
    built = pretrained_network(spec, "auto")
    torch.testing.assert_close(built.eval()(images), expected)
    assert not any("pooler" in name for name, _ in built.named_parameters())


def test_of_a_network_of_texts_and_images_the_images_part_is_used(tmp_path):
    config = transformers.SiglipConfig(
        text_config={**SMALL, "intermediate_size": 32, "vocab_size": 10},
        vision_config={**SMALL, "intermediate_size": 32, "image_size": 28, "patch_size": 14},
    )
    torch.manual_seed(0)
    both = transformers.SiglipModel(config).eval()
    spec = _saved(tmp_path / "siglip", both)
    images = torch.rand(2, 3, 28, 28)
    mean, sd = (torch.tensor(PROCESSING[k])[:, None, None] for k in ("image_mean", "image_std"))
    expected = both.vision_model(pixel_values=(images - mean) / sd).pooler_output
    torch.testing.assert_close(pretrained_network(spec, "auto").eval()(images), expected)


def test_a_map_of_features_is_averaged(tmp_path):
    network = _network("resnet", embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1])
    spec = _saved(tmp_path / "resnet", network)
    built = pretrained_network(spec, "mean").eval()
    images = torch.rand(2, 3, 28, 28)
    assert built(images).ndim == 4
    torch.testing.assert_close(
        built(images).mean((2, 3)), pretrained_network(spec, "auto").eval()(images)
    )


@torch.no_grad()
def test_a_masked_autoencoder_sees_whole_images(tmp_path):
    network = _network("vit_mae", intermediate_size=32, patch_size=14, mask_ratio=0.75)
    built = pretrained_network(_saved(tmp_path / "mae", network), "auto").eval()
    images = torch.rand(2, 3, 28, 28)
    torch.testing.assert_close(built(images), built(images))


def test_settings_that_choose_code_are_not_taken_over(dino, tmp_path):
    """A repository's config.json may name code of its own, or attention kernels to fetch."""
    folder = tmp_path / "hostile"
    spec = _saved(folder, _network("dinov2", patch_size=14))
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "auto_map": {"AutoModel": "evil.Evil", "AutoConfig": "evil.Config"},
        "attn_implementation": "evil/kernel",
        "_attn_implementation": "evil/kernel",
        "quantization_config": {"quant_method": "evil"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    names = set(read_repository(spec).architecture)
    assert not names & {"auto_map", "attn_implementation", "_attn_implementation"}
    assert pretrained_network(spec, "auto")(torch.rand(1, 3, 28, 28)).shape == (1, 32)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "dpt", "backbone": "evil/repo"}, "is built around another network, 'evil/repo'"),
        ({"model_type": "detr", "use_timm_backbone": True, "backbone": "a"}, "another network, 'a'"),
        ({"model_type": "x", "vision_config": {"backbone": "evil/repo"}}, "another network"),
        ({"model_type": "timm_wrapper", "architecture": "hf-hub:evil/x"}, "not timm's, 'hf-hub:evil/x'"),
    ],
)  # fmt: skip
def test_a_description_of_a_model_does_not_name_what_is_fetched(config, words, monkeypatch):
    def refuse(*_, **__):
        pytest.fail("the network was asked for")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    kept = {"config": config, "revision": None, "mean": [0.5], "sd": [0.5], "size_px": 32}
    with pytest.raises(ConfigError, match=words):
        untrained_network("hf:me/mine", "auto", {**kept, "features": "auto"})


def test_pickled_weights_are_refused(dino, tmp_path):
    folder = tmp_path / "pickled"
    spec = _saved(folder, _network("dinov2", patch_size=14))
    (folder / "model.safetensors").unlink()
    torch.save(_network("dinov2", patch_size=14).state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="no weights in safetensors files"):
        pretrained_network(spec, "auto")


def test_weights_that_do_not_fit_are_refused(tmp_path):
    folder = tmp_path / "net"
    spec = _saved(folder, _network("dinov2", patch_size=14))
    config = json.loads((folder / "config.json").read_text())
    fewer = {"num_hidden_layers": 1, "out_features": ["stage1"], "out_indices": [1]}
    for change, words in (
        ({"num_hidden_layers": 3}, r"\d+ are missing, such as enc"),
        (fewer, r"they have encoder.layer.1, and config.json asks for fewer"),
        ({"hidden_size": 64}, r".* has the shape .*, and config.json asks for .*"),
    ):
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ConfigError, match=f"do not fit its network: {words}"):
            pretrained_network(spec, "auto")


@pytest.mark.parametrize("share", [0, 0.5])
def test_weights_that_were_cut_off_are_refused(tmp_path, share):
    spec = _saved(tmp_path / "net", _network("dinov2", patch_size=14))
    path = tmp_path / "net" / "model.safetensors"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ConfigError, match=f"the weights of {spec} are damaged") as refused:
        pretrained_network(spec, "auto")
    assert refused.value.hint == "fetch or save them again"


def test_weights_that_are_not_finite_are_refused(tmp_path):
    network = _network("dinov2", patch_size=14)
    torch.nn.init.constant_(network.layernorm.weight, torch.nan)
    spec = _saved(tmp_path / "net", network)
    config = EncoderConfig(backbone=spec, is_pretrained=True, channels=(4, 8), code_size=8)
    with pytest.raises(ConfigError, match=f"{spec} gives 32 features that are not all finite"):
        build_encoder(config, in_channels=3, size_px=28)
