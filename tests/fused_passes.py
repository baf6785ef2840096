"""What tests of the fused training pass share, on a GPU and in emulation."""

import torch


def relative_error(found, truth):
    return ((found.double() - truth.double()).norm() / truth.double().norm()).item()


def with_norms_that_matter(model):
    """Scales of either sign, and shifts."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.uniform_(-0.3, 1.2)
                module.bias.normal_(0, 0.3)
    return model


def by_block(switches):
    """Of a pass, as the plain encoder gives them."""
    return [switches[layer].permute(0, 3, 1, 2) for layer in sorted(switches)]


def decode_with(model, switches):
    """Un-pool by these: where two cells of a window are all but equal, rounding chooses between them."""
    model._decode = lambda codes, _: type(model)._decode(model, codes, switches)
