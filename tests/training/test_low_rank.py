import pytest
import torch
from torch import nn

from orbitset.encoders import BackboneEncoder
from orbitset.errors import ConfigError
from orbitset.run_folder import Run
from orbitset.training import RunRecorder, TrainConfig
from orbitset.training.low_rank import LowRank
from orbitset.training.progress import Silent

IMAGES = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(3))


def _codes(model):
    with torch.no_grad():
        return model.eval().encode(IMAGES)


def test_nothing_changes_before_the_first_step(blocks_model):
    model = blocks_model()
    before = _codes(model)
    low_rank = LowRank(model, 2)
    assert torch.equal(_codes(model), before)
    with low_rank.merged():
        assert torch.equal(_codes(model), before)


def test_additions_norms_and_what_is_behind_learn(blocks_model):
    model = blocks_model()
    LowRank(model, 2)
    learned = {name for name, weight in model.named_parameters() if weight.requires_grad}
    of_blocks = {
        f"backbone.blocks.{number}.{name}"
        for number in range(3)
        for layer in ("mlp.0", "mlp.2")
        for name in (f"{layer}.lora_down", f"{layer}.lora_up", "norm.weight", "norm.bias")
    }
    norm = {"backbone.norm.weight", "backbone.norm.bias"}
    assert {name for name in learned if name.startswith("backbone.")} == of_blocks | norm
    assert {"code.weight", "decoder.last.weight"} <= learned


def test_gradients_are_those_of_a_product_of_two_matrices(blocks_model):
    model = blocks_model().eval()
    low_rank = LowRank(model, 2)
    linear = model.backbone.blocks[1].mlp[0]
    with torch.no_grad():
        linear.lora_up.normal_()
    x = torch.randn(7, 6)
    plain = nn.functional.linear(x, linear.weight + linear.lora_up @ linear.lora_down, linear.bias)
    expected = torch.autograd.grad(plain.square().sum(), (linear.lora_down, linear.lora_up))
    output = linear(x)
    torch.testing.assert_close(output, plain)
    gradients = torch.autograd.grad(output.square().sum(), (linear.lora_down, linear.lora_up))
    torch.testing.assert_close(gradients, expected)
    with low_rank.merged():
        assert torch.equal(linear(x), plain)
    assert torch.equal(linear(x), output)


def test_in_the_end_the_network_is_a_plain_one(blocks_model, fine_tune):
    plain = blocks_model()
    model = fine_tune(blocks_model(), lora=2)
    before, after = plain.state_dict(), model.state_dict()
    assert before.keys() == after.keys()
    assert all(weight.requires_grad for weight in model.parameters())
    assert torch.equal(before["backbone.stem.weight"], after["backbone.stem.weight"])
    change = after["backbone.blocks.0.mlp.0.weight"] - before["backbone.blocks.0.mlp.0.weight"]
    assert torch.linalg.matrix_rank(change, rtol=1e-3) == 2
    plain.load_state_dict(after)
    assert torch.equal(_codes(plain), _codes(model))


class _Stop(Silent):
    def update(self, done, images, terms):
        if done == 5:
            raise KeyboardInterrupt


@pytest.mark.parametrize("settings", [{}, {"average": 0.9, "layer_decay": 0.5, "unfreeze": 0.5}])
def test_it_is_resumed_exactly_and_what_is_scored_is_kept(
    tmp_path, blocks_model, fine_tune, settings
):
    def trained(out, progress=None, *, resume=False):
        scored = []

        def evaluate(model):
            scored.append(_codes(model))
            return {"score": float(scored[-1].sum())}

        run = Run(out)
        if not resume:
            run.create({"name": "test"})
        recorder = RunRecorder(
            run,
            evaluate=evaluate,
            evaluate_at={0, 4, 8},
            is_best=lambda records: records[-1]["step"] == 4,
            resume=resume,
            checkpoint_every_s=0,
        )
        parts = {"recorder": recorder, "progress": progress, "weight_decay": 0.1}
        return fine_tune(blocks_model(), 8, lora=2, **parts, **settings), scored, recorder

    model, scored, recorder = trained(tmp_path / "a")
    assert torch.equal(_codes(model), scored[2])
    best = blocks_model()
    best.load_state_dict(recorder.best_weights)
    assert torch.equal(_codes(best), scored[1])
    assert not torch.equal(scored[1], scored[2])
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "b", _Stop())
    torch.rand(3)
    again, _, resumed = trained(tmp_path / "b", resume=True)
    for ours, theirs in (
        (again.state_dict(), model.state_dict()),
        (resumed.best_weights, recorder.best_weights),
    ):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    records = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in "ab"]
    assert records[0] == records[1]


def test_a_network_without_linear_layers_in_blocks_is_refused():
    net = nn.Sequential(nn.Conv2d(1, 6, 3, 2), nn.ReLU(), nn.Conv2d(6, 6, 2))
    model = BackboneEncoder(net, size_px=8, channels=(4,), code_size=5)
    with pytest.raises(ConfigError, match=r"train.lora is for linear layers in numbered blocks"):
        LowRank(model, 2)
    assert all(weight.requires_grad for weight in model.parameters())


@pytest.mark.parametrize("never", [{"head_first": 1.0}, {"backbone_rate": 0.0}])
def test_a_network_that_never_learns_is_refused(never):
    for setting in ({"lora": 4}, {"recompute": True}):
        with pytest.raises(ConfigError, match="is for a network that learns"):
            TrainConfig(**setting, **never)
