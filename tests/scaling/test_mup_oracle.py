"""The table mup against the package mup, tensor by tensor; and what the package does to what is not its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import mup
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hpxfer.recipe import Recipe
from hpxfer.recipe.file import TablePart
from hpxfer.scaling.evaluate import Multipliers, evaluate, parameterization
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column

EXPERTS, CONTEXT, VOCAB, FEATURES, CLASSES = 4, 8, 24, 12, 6


class MLP(nn.Module):
    """Input layer, one residual FFN with the biases of its output, readout."""

    roles = (
        ("first.weight", "embedding"),
        ("up.weight", "dense_in"),
        ("down.weight", "dense_out"),
        ("down.bias", "hidden_bias"),
        ("readout.weight", "readout"),
    )

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, shape.width, bias=False)
        self.up = nn.Linear(shape.width, shape.dense_width, bias=False)
        self.down = nn.Linear(shape.dense_width, shape.width)
        self.readout = mup.MuReadout(shape.width, CLASSES, bias=False)


class Expert(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.expert_width, bias=False)
        self.up = nn.Linear(shape.width, shape.expert_width, bias=False)
        self.down = nn.Linear(shape.expert_width, shape.width, bias=False)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key = nn.Linear(shape.width, shape.width, bias=False)
        self.value = nn.Linear(shape.width, shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width)
        self.router = mup.MuReadout(shape.width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert(shape) for _ in range(EXPERTS))


class Transformer(nn.Module):
    """A transformer of MoE blocks, as far as its parameters go: the oracle reads these and calls single layers."""

    roles = (
        ("token.weight", "embedding"),
        ("position.weight", "position"),
        ("query.weight", "attn_q"),
        ("key.weight", "attn_k"),
        ("value.weight", "attn_v"),
        (".out.weight", "attn_out"),
        (".out.bias", "hidden_bias"),
        (".norm.weight", "norm"),
        (".norm.bias", "hidden_bias"),
        ("final.weight", "final_norm"),
        ("final.bias", "hidden_bias"),
        ("router.weight", "router"),
        ("gate.weight", "expert_gate"),
        ("up.weight", "expert_in"),
        ("down.weight", "expert_out"),
        ("readout.weight", "readout"),
    )

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCAB, shape.width)
        self.position = nn.Embedding(CONTEXT, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.final = nn.LayerNorm(shape.width)
        self.readout = mup.MuReadout(shape.width, VOCAB, bias=False)


def role_of(model: MLP | Transformer, name: str) -> str:
    """Return the role of a parameter by the end of its name."""
    (role,) = [role for end, role in model.roles if f".{name}".endswith(end)]
    return role


LR, DECAY, STD, REL = 0.1, 0.01, 0.02, 1e-6
BASE = Shape(width=16, depth=2, head_dim=8, num_experts=4, num_active=1, expert_width=24, dense_width=40)
# What the package does, in words of the table: a multiplier at the output, decay against the LR, one eps for all.
MATCHING = {"readout": "forward", "weight_decay": "source", "eps": "global"}
MODELS = pytest.mark.parametrize("make", [MLP, Transformer])
# Width, and further growth of the hidden layers: their fan-in and fan-out then differ in their ratios to the base.
SCALES = pytest.mark.parametrize(("times", "hidden"), [(1, 1), (2, 1), (4, 1), (8, 1), (2, 3), (4, 0.5)])
COLUMNS = pytest.mark.parametrize("optimizer", ["adam", "sgd"])
Make = type[MLP] | type[Transformer]


def at(times: int, hidden: float = 1) -> Shape:
    wider = {name: round(times * hidden * getattr(BASE, name)) for name in ("expert_width", "dense_width")}
    return replace(BASE, width=times * BASE.width, **wider)


def seeded(make: Make, shape: Shape) -> MLP | Transformer:
    torch.manual_seed(0)
    return make(shape)


def with_base_shapes(make: Make, shape: Shape) -> MLP | Transformer:
    """Return the model as the package prepares it: it hangs shapes on the tensors and rescales some of them."""
    return mup.set_base_shapes(seeded(make, shape), make(BASE), delta=make(at(2, 2)))


def table(optimizer: Column, shape: Shape, **conventions: str) -> dict[str, Multipliers]:
    return evaluate(parameterization("mup", {**MATCHING, **conventions}), BASE, shape, optimizer)


def theirs(model: MLP | Transformer, optimizer: Column) -> dict[str, tuple[float, float]]:
    """Return name -> LR and weight decay in the package's groups; vectors come in a group without decay."""
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    vectors = [t for n, t in model.named_parameters() if table(optimizer, BASE)[role_of(model, n)].weight_decay == 0]
    matrices = [tensor for tensor in model.parameters() if all(tensor is not vector for vector in vectors)]
    make = mup.MuAdamW if optimizer == "adam" else mup.MuSGD
    made = make([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr=LR, weight_decay=DECAY)
    out = {
        names[id(tensor)]: (group["lr"], group["weight_decay"])
        for group in made.param_groups
        for tensor in group["params"]
    }
    assert out.keys() == dict(model.named_parameters()).keys()
    return out


def ours(model: MLP | Transformer, got: Mapping[str, Multipliers]) -> dict[str, tuple[float, float]]:
    rows = {name: got[role_of(model, name)] for name, _ in model.named_parameters()}
    return {name: (LR * row.lr, DECAY * row.weight_decay) for name, row in rows.items()}


def agree(ours: Mapping[str, tuple[float, float]], other: Mapping[str, tuple[float, float]]) -> bool:
    return all(ours[name] == pytest.approx(other[name], rel=REL) for name in ours)


@COLUMNS
@MODELS
@SCALES
def test_lr_and_weight_decay_of_every_tensor(make: Make, times: int, hidden: float, optimizer: Column) -> None:
    model = with_base_shapes(make, at(times, hidden))
    assert agree(ours(model, table(optimizer, at(times, hidden))), theirs(model, optimizer))


@MODELS
@COLUMNS
@pytest.mark.parametrize("other", [{"readout": "init_lr"}, {"weight_decay": "independent"}], ids=str)
def test_other_conventions_do_not_agree(make: Make, optimizer: Column, other: dict[str, str]) -> None:
    model = with_base_shapes(make, at(4))
    assert not agree(ours(model, table(optimizer, at(4), **other)), theirs(model, optimizer))


@pytest.mark.parametrize(("optimizer", "name"), [("adam", "sp"), ("adam", "completep-moe"), ("sgd", "mup-moe")])
def test_other_tables_do_not_agree(optimizer: Column, name: str) -> None:
    """CompleteP has muP's rules along width, but it does not look at the shape of an expert that grows by itself."""
    shape = at(4, 0.5)
    model = with_base_shapes(Transformer, shape)
    assert not agree(ours(model, evaluate(parameterization(name), BASE, shape, optimizer)), theirs(model, optimizer))


@MODELS
@SCALES
def test_std_of_the_package_s_own_draws(make: Make, times: int, hidden: float) -> None:
    """`mup.init.normal_` draws a scale times what torch draws from the same seed: the scale is read off exactly."""
    model, got = with_base_shapes(make, at(times, hidden)), table("adam", at(times, hidden))
    for name, tensor in model.named_parameters():
        role = role_of(model, name)
        if ROLES[role] in ("ones", "zeros"):
            continue
        torch.manual_seed(1)
        mup.init.normal_(tensor, std=STD)
        drawn = tensor.detach().clone()
        torch.manual_seed(1)
        nn.init.normal_(tensor, std=STD)
        assert torch.allclose(drawn, got[role].init_std * tensor, rtol=REL, atol=0), name


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("times", [1, 2, 4, 8])
def test_forward_multiplier_in_training_and_in_evaluation(times: int, training: bool) -> None:
    """A trap: an output multiplier that is applied in training alone. The package applies it in both."""
    model, got = with_base_shapes(Transformer, at(times)).train(training), table("adam", at(times))
    x = torch.randn(3, at(times).width)
    for layer, role in ((model.readout, "readout"), (model.blocks[0].router, "router")):
        assert torch.allclose(layer(x), got[role].forward * F.linear(x, layer.weight), rtol=1e-5, atol=1e-6)
        assert torch.allclose(layer(x), F.linear(x, layer.weight), rtol=1e-5, atol=1e-6) == (times == 1)
    assert all(row.forward == 1 for role, row in got.items() if role not in ("readout", "router"))


# What the package `mup` does to names, groups and tensors that are not its own, and that nothing here does.
PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "quickstart" / "recipe.yaml"


@pytest.fixture
def recipe() -> Recipe:
    """The published recipe, as one for the table `mup`."""
    file = Recipe.load(PUBLISHED).file
    return Recipe(file.model_copy(update={"parameterization": TablePart(name="mup")}))


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
