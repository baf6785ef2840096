import sys

import pytest
import torch
from torch import nn

from orbitset.encoders import BackboneEncoder, EncoderConfig, build_encoder
from orbitset.encoders.backbone import build_backbone, check_backbone, check_restorable
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

class Demanding(nn.Module):
    def __init__(self, depth):
        super().__init__()

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


class _Gives(nn.Module):
    def __init__(self, found):
        super().__init__()
        self.found = found

    def forward(self, images):
        return self.found(images)


@pytest.mark.parametrize(("channels", "size_px"), [(1, 32), (3, 33), (3, 50), (1, 96)])
@pytest.mark.parametrize("norm", ["none", "batch", "unit", "sphere"])
def test_images_come_back_in_their_own_shape(channels, size_px, norm):
    net = nn.Conv2d(channels, 5, 3, stride=4)
    model = BackboneEncoder(
        net, in_channels=channels, size_px=size_px, channels=(4, 8), code_size=12, code_norm=norm
    )
    images = torch.rand(3, channels, size_px, size_px)
    codes, rectified = model(images)
    assert codes.shape == (3, 12) and rectified.shape == images.shape
    model.eval()
    torch.testing.assert_close(model.decode(model.encode(images)), model.rectify(images))


def test_every_weight_takes_part():
    model = BackboneEncoder(nn.Conv2d(1, 5, 3), size_px=32, channels=(4, 8), code_size=12)
    codes, rectified = model(torch.rand(3, 1, 32, 32))
    (codes.square().sum() + rectified.square().sum()).backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_a_map_of_features_is_averaged_over_places():
    net = nn.Conv2d(1, 5, 3)
    model = BackboneEncoder(net, size_px=16, channels=(4,), code_size=12).eval()
    images = torch.rand(2, 1, 16, 16)
    torch.testing.assert_close(model.encode(images), model.code(net(images).mean((2, 3))))


def test_looking_at_a_network_leaves_it_as_it_was():
    net = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten()).train()
    BackboneEncoder(net, size_px=16, channels=(4,), code_size=12)
    assert net.training and net[0].num_batches_tracked == 0


def test_images_of_another_shape_are_refused():
    model = BackboneEncoder(nn.Flatten(), size_px=16, channels=(4,), code_size=12)
    with pytest.raises(ValueError, match=r"takes \(count, 1, 16, 16\)"):
        model.encode(torch.rand(2, 3, 16, 16))


def test_layers_without_a_size_are_refused():
    with pytest.raises(ConfigError, match="has layers without a size"):
        BackboneEncoder(nn.Sequential(nn.Flatten(), nn.LazyLinear(4)), size_px=16)


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (lambda images: images[:, 0], r"gives \(2, 16, 16\) for 2 images"),
        (lambda images: images.flatten(), r"gives \(512,\)"),
        (lambda images: (images, images), "gives tuple"),
        (lambda images: images.view(7, 7), "does not take images of 2 x 1 x 16 x 16"),
        (lambda images: images.flatten(1) * (len(images) / (len(images) - 1)), "division by zero"),
        (lambda images: images.flatten(1).long(), "features of int64"),
        (lambda images: images.flatten(1).log() / 0, "finite floats"),
        (lambda images: images.flatten(1)[:, :0], "gives 0 features"),
        (lambda images: images.mul_(2).flatten(1), "changes the images it is shown"),
    ],
)
def test_what_gives_no_vector_for_an_image_is_refused(found, word):
    with pytest.raises(ConfigError, match=word):
        BackboneEncoder(_Gives(found), size_px=16)


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


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("no_such_nets:Pooled", "No module named 'no_such_nets'"),
        ("their_nets.Pooled", "give vgg, timm:NAME or package"),
        ("broken_nets:Net", "ZeroDivisionError in broken_nets"),
        ("leaving_nets:Net", "SystemExit in leaving_nets"),
        ("needing_nets:Net", "ModuleNotFoundError in needing_nets: No module named 'what_is_not"),
        ("their_nets:Poled", "their_nets has no Poled; did you mean Pooled"),
        ("their_nets:function", "is no class of networks"),
        ("os:system", "is no class of networks"),
        ("timm:", "give vgg, timm:NAME or package"),
        ("resnet18", "give vgg, timm:NAME or package"),
        ("their nets:Pooled", "give vgg, timm:NAME or package"),
    ],
)
def test_names_of_no_network_are_refused(nets, name, word):
    with pytest.raises(ConfigError, match=word):
        check_backbone(EncoderConfig(backbone=name).backbone)


def test_a_network_that_cannot_be_made_is_refused(nets):
    with pytest.raises(ConfigError, match=r"Demanding cannot be made: TypeError.*depth"):
        build_backbone("their_nets:Demanding", in_channels=1, size_px=32)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"is_pretrained": True}, "the paper's has none"),
        ({"backbone": "a:B", "is_pretrained": True}, "for networks of timm, not for a:B"),
        ({"backbone": "a:B", "pool": 4}, "a:B has none of them"),
        ({"backbone": "a:B", "unpooling": "switches"}, "a:B has none of them"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(settings, word):
    with pytest.raises(ConfigError, match=word):
        EncoderConfig(**settings)


def test_code_that_comes_with_a_model_is_not_run(nets, tmp_path):
    with pytest.raises(ConfigError, match="lies in the folder of the model"):
        build_backbone("broken_nets:Net", in_channels=1, size_px=32, not_from=tmp_path)


def test_modules_are_looked_for_where_the_program_is_called(tmp_path, monkeypatch):
    (tmp_path / "nets_that_lie_here.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    monkeypatch.setattr(sys, "path", [path for path in before if path])
    check_backbone("nets_that_lie_here:Pooled")
    assert sys.path == [path for path in before if path]


class _Forgetful(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Buffer(torch.rand(1), persistent=False)

    def forward(self, images):
        return self.scale * images.flatten(1)


class _Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(256, 256), nn.Linear(256, 256)
        self.b.weight = self.a.weight

    def forward(self, images):
        return self.b(self.a(images.flatten(1)))


class _Noting(nn.Module):
    def get_extra_state(self):
        return {"seen": 3}

    def set_extra_state(self, state):
        pass

    def forward(self, images):
        return images.flatten(1)


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (_Forgetful, "with the same weights it gives other codes"),
        (_Tied, "one tensor under two names"),
        (_Noting, "which is no tensor"),
    ],
)
def test_a_network_that_cannot_be_kept_is_refused(kind, word):
    model, again = (BackboneEncoder(kind(), size_px=16, code_size=4) for _ in range(2))
    with pytest.raises(ConfigError, match=word):
        check_restorable(model, again, torch.rand(2, 1, 16, 16))


def test_a_network_that_its_weights_bring_back_can_be_kept():
    nets = (nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)) for _ in range(2))
    model, again = (BackboneEncoder(net, size_px=16, code_size=4) for net in nets)
    model(torch.rand(4, 1, 16, 16))
    check_restorable(model, again, torch.rand(2, 1, 16, 16))
    assert model.training


def test_networks_of_timm_need_timm(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match="needs timm, which cannot be imported"):
        check_backbone("timm:resnet18")


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
        check_backbone("timm:resnet81")
