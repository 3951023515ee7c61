"""What the package `mup` does to names, groups and tensors that are not its own, and that nothing here does it."""

from __future__ import annotations

from pathlib import Path

import mup
import pytest
import torch
from mup.shape import _zip_infshape_dict
from mup_models import MLP, Transformer

from hpxfer.recipe import Recipe
from hpxfer.recipe.match import match_roles
from hpxfer.scaling.shape import Shape
from hpxfer.spec.recipe_file import TablePart

PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "quickstart" / "recipe.yaml"
NAMES = ["embed.weight", "mlp.module", "model.decoder.weight", "layers.0.mul"]


@pytest.fixture
def recipe() -> Recipe:
    """The published recipe, as one for the table `mup`."""
    file = Recipe.load(PUBLISHED).file
    return Recipe(file.model_copy(update={"parameterization": TablePart(name="mup")}))


def test_the_package_eats_letters_of_names() -> None:
    """`str.strip("module.")` takes any of these letters off both ends, not the prefix."""
    wrapped = {f"module.{name}": (1,) for name in NAMES}
    with pytest.raises(AssertionError, match="extra names"):
        _zip_infshape_dict(wrapped, dict.fromkeys(NAMES, (1,)))


@pytest.mark.parametrize("prefix", ["", "module."])
def test_patterns_see_whole_names(prefix: str) -> None:
    names = [prefix + name for name in NAMES]
    got = match_roles(names, [], [("*embed.weight", "embedding"), (f"{prefix}m*", "norm"), ("*", "hidden_bias")], {})
    assert list(got) == names
    assert list(got.values()) == ["embedding", "norm", "norm", "hidden_bias"]


def test_the_package_writes_into_the_caller_s_groups_and_onto_tensors() -> None:
    """A second optimizer made from the same groups starts from what the first wrote."""
    shapes = [Shape(width=8 * n, depth=1, head_dim=8, dense_width=16 * n) for n in (1, 2, 4)]
    model = mup.set_base_shapes(MLP(shapes[2]), MLP(shapes[0]), delta=MLP(shapes[1]))
    groups = [{"params": list(model.parameters())}]
    mup.MuAdamW(groups, lr=0.1, weight_decay=0.01)
    assert groups[0].keys() == {"params", "lr", "weight_decay"}
    assert all(hasattr(tensor, "infshape") for tensor in model.parameters())


@pytest.mark.filterwarnings("ignore::hpxfer.recipe.OtherModelWarning")  # the recipe was tuned on another model
def test_groups_are_new_each_time_and_nothing_hangs_on_tensors(recipe: Recipe) -> None:
    base = recipe.base_shape
    model = Transformer(base)
    roles = [(f"*{end.removeprefix('.')}", role) for end, role in sorted(Transformer.roles, key=_long_first)]
    before = {name: set(vars(tensor)) for name, tensor in model.named_parameters()}
    recipe.attach(model, base, by_hand=recipe.forward_multipliers(base))

    def numbers() -> list[dict[str, object]]:
        return [
            {**group, "params": [id(tensor) for tensor in group["params"]]}
            for group in recipe.param_groups(model, roles, base)
        ]

    known = numbers()
    made = torch.optim.AdamW(recipe.param_groups(model, roles, base))
    for group in made.param_groups:
        group["lr"] *= 0.5
        group["params"].clear()
    assert numbers() == known
    assert {name: set(vars(tensor)) for name, tensor in model.named_parameters()} == before
    assert len(known) < len(before)  # one group for each set of equal numbers


def _long_first(pair: tuple[str, str]) -> int:
    return -len(pair[0])
