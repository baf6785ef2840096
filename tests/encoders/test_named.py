import re
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from orbitset.encoders import EncoderConfig, build_encoder
from orbitset.encoders.named import Stated, build_backbone, look_at
from orbitset.errors import ConfigError

NETS = """
from torch import nn

class Pooled(nn.Sequential):
    def __init__(self, in_channels):
        super().__init__(nn.Conv2d(in_channels, 6, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())

class Sized(nn.Module):
    def __init__(self, size_px, in_channels=1, depth=2):
        super().__init__()
        self.made_for = size_px, in_channels, depth

class Bare(nn.Module):
    def forward(self, images):
        return images.flatten(1)

class Filled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(2, 2) for _ in range(20)))
        self.load_state_dict({})


class Demanding(nn.Module):
    def __init__(self, depth):
        super().__init__()

class Trained(nn.Module):
    size_px, mean, sd, is_pretrained = 48, (0.5, 0.25, 0.0), (1.0, 2.0, 4.0), True

    def __init__(self, is_pretrained):
        super().__init__()
        self.told = is_pretrained

    def forward(self, images):
        return images.flatten(1)

def function():
    raise SystemExit("never called")
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    (tmp_path / "their_nets.py").write_text(NETS)
    (tmp_path / "broken_nets.py").write_text("1 / 0")
    (tmp_path / "leaving_nets.py").write_text("raise SystemExit(3)")
    (tmp_path / "needing_nets.py").write_text("import what_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_network_is_found_by_its_import_path(nets):
    config = EncoderConfig(backbone="their_nets:Pooled", channels=(4, 8), code_size=12)
    model = build_encoder(config, in_channels=3, size_px=20)
    assert model.rectify(torch.rand(2, 3, 20, 20)).shape == (2, 3, 20, 20)
    behind = build_encoder(config, in_channels=1, size_px=32, has_transformer=True)
    assert behind.encode(torch.rand(2, 1, 32, 32)).shape == (2, 12)


def test_a_network_is_told_what_it_is_made_for(nets):
    made = build_backbone("their_nets:Sized", in_channels=3, size_px=20)
    assert made.made_for == (20, 3, 2)
    assert build_backbone("their_nets:Bare", in_channels=3, size_px=20) is not None


def test_a_class_states_its_images_and_its_weights(nets):
    assert look_at("their_nets:Trained") == Stated(size_px=48, is_pretrained=True)
    assert look_at("their_nets:Sized") == Stated(size_px=None, is_pretrained=False)
    network = build_backbone("their_nets:Trained", in_channels=3, size_px=48, is_pretrained=True)
    assert network.network.told is True
    images = torch.full((1, 3, 1, 1), 0.5)
    assert network(images).tolist() == [[0.0, 0.125, 0.125]]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("no_such_nets:Pooled", "No module named 'no_such_nets'"),
        ("their_nets.Pooled", "give vgg, timm:NAME, hf:NAME or package"),
        ("broken_nets:Net", r"ZeroDivisionError: division by zero \(.*broken_nets.py, line 1\)"),
        ("leaving_nets:Net", r"SystemExit: 3 \(.*leaving_nets.py, line 1\)"),
        ("needing_nets:Net", "ModuleNotFoundError: No module named .what_is_not"),
        ("their_nets:Poled", "their_nets has no Poled; did you mean Pooled"),
        ("their_nets:function", "is no class of networks"),
        ("os:system", "is no class of networks"),
        ("timm:", "give vgg, timm:NAME, hf:NAME or package"),
        ("resnet18", "give vgg, timm:NAME, hf:NAME or package"),
        ("their nets:Pooled", "give vgg, timm:NAME, hf:NAME or package"),
    ],
)
def test_names_of_no_network_are_refused(nets, name, word):
    with pytest.raises(ConfigError, match=word):
        look_at(EncoderConfig(backbone=name).backbone)


def test_a_network_that_cannot_be_made_is_refused(nets):
    with pytest.raises(ConfigError, match=r"Demanding cannot be made: TypeError.*depth"):
        build_backbone("their_nets:Demanding", in_channels=1, size_px=32)


def test_weights_that_do_not_fit_a_network_of_ones_own_are_named_in_a_line(nets):
    with pytest.raises(
        ConfigError, match=r"Filled cannot be made: RuntimeError: .*Missing"
    ) as refused:
        build_backbone("their_nets:Filled", in_channels=1, size_px=32)
    assert "\n" not in refused.value.message and "layers.19" not in refused.value.message
    assert re.search(r" … \(.*their_nets.py, line \d+\)$", refused.value.message)


def test_modules_are_looked_for_where_the_program_is_called(tmp_path, monkeypatch):
    (tmp_path / "nets_that_lie_here.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", [path for path in before if path])
    look_at("nets_that_lie_here:Pooled")
    assert sys.path == [path for path in before if path]


def test_networks_of_timm_need_timm(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match="needs timm, which cannot be imported"):
        look_at("timm:resnet18")


@pytest.fixture
def timm():
    return pytest.importorskip("timm", exc_type=Exception)


@pytest.mark.parametrize(
    ("name", "channels", "size_px"),
    [("resnet18", 3, 64), ("resnet18", 1, 32), ("vit_tiny_patch16_224", 3, 64)],
)
def test_networks_of_timm_take_images_of_other_sizes(timm, name, channels, size_px):
    config = EncoderConfig(backbone=f"timm:{name}", channels=(4, 8), code_size=12)
    model = build_encoder(config, in_channels=channels, size_px=size_px)
    images = torch.rand(2, channels, size_px, size_px)
    codes, rectified = model(images)
    assert codes.shape == (2, 12) and rectified.shape == images.shape


def test_near_names_of_timm_are_said(timm):
    with pytest.raises(ConfigError, match=r"no network 'resnet81'; near it are .*resnet"):
        look_at("timm:resnet81")


@pytest.mark.parametrize(
    ("in_channels", "mean", "sd"), [(3, [0.1, 0.2, 0.6], [0.5, 1.0, 3.0]), (1, [0.3], [1.5])]
)
def test_a_network_of_timm_sees_images_as_it_expects_them(monkeypatch, in_channels, mean, sd):
    """Grey images are standardised by the averages over the channels."""
    network = nn.Flatten()
    network.pretrained_cfg = {"mean": (0.1, 0.2, 0.6), "std": (0.5, 1.0, 3.0)}
    options = {}
    monkeypatch.setitem(
        sys.modules,
        "timm",
        SimpleNamespace(
            list_models=lambda: ["net"],
            create_model=lambda name, **given: options.update(given) or network,
        ),
    )
    built = build_backbone("timm:net.tag", in_channels=in_channels, size_px=4, is_pretrained=True)
    images = torch.rand(2, in_channels, 4, 4)
    expected = (images - torch.tensor(mean)[:, None, None]) / torch.tensor(sd)[:, None, None]
    torch.testing.assert_close(built(images), expected.flatten(1))
    assert options == {
        "pretrained": True, "num_classes": 0, "in_chans": in_channels, "img_size": 4
    }  # fmt: skip
    network.pretrained_cfg = {}
    halves = build_backbone("timm:net", in_channels=1, size_px=4)
    torch.testing.assert_close(halves(torch.full((1, 1, 1, 1), 0.75)).item(), 0.5)
