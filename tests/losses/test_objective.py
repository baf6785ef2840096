"""What an objective does not say of itself is as training expects it."""

import torch
from torch import nn

from orbitset.encoders import RectifyingEncoder
from orbitset.losses import Classified, Objective, Term, as_objective
from orbitset.losses.objective import name_of
from orbitset.orbits import AffineOrbits, AffineRanges, OrbitBatches
from orbitset.training import fit


class Plain(nn.Module):
    """A loss of a user's own, which says nothing of itself."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, codes, batch, rectified):
        assert rectified is None
        return {"loss": self.scale * codes.square().mean()}


class Telling(Objective):
    """One that says all."""

    uses_rectified, shapes_codes = True, False

    @property
    def about_terms(self):
        return {"near": Term("distance to the target")}


def test_a_plain_module_gets_what_it_does_not_say():
    loss = as_objective(Plain())
    assert type(loss) is Plain and list(loss.state_dict()) == ["scale"]
    assert (loss.uses_rectified, loss.shapes_codes, loss.about_terms) == (False, True, {})
    told = as_objective(Telling())
    assert (told.uses_rectified, told.shapes_codes, [*told.about_terms]) == (True, False, ["near"])


def test_classes_beside_an_objective_leave_it_as_it_is():
    for inner in (Plain(), Telling()):
        loss = Classified(inner, weight=1.0, code_size=4, num_classes=2)
        assert loss.uses_rectified == isinstance(inner, Telling) != loss.shapes_codes
        assert [*loss.about_terms] == [*inner.about_terms, "classes", "right"]


def test_fit_takes_a_plain_module():
    images = torch.randint(0, 256, (6, 1, 16, 16), dtype=torch.uint8)
    orbits = AffineOrbits(images, canvas_px=16, ranges=AffineRanges(translation_px=2))
    batches = OrbitBatches(orbits, orbits_per_batch=2, members_per_batch=2)
    loss = Plain()
    fit(RectifyingEncoder(size_px=16, channels=(4,), code_size=8), loss, batches, steps=2)
    assert loss.scale != 1


def test_a_loss_is_named_by_its_function_or_class():
    def pull(codes, batch):
        return codes.sum()

    assert name_of(as_objective(pull)).endswith(
        "test_a_loss_is_named_by_its_function_or_class.<locals>.pull"
    )
    assert name_of(Plain()) == f"{__name__}:Plain"
