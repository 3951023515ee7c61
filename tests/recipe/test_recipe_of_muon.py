"""Muon for a user's own model: the file, the split of tensors into matrices, its step, and torch's own Muon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import ATTENTION, make
from own_model import OwnGPT, roles_of
from plain_muon import plain_step
from recipe_data import BASE, multiplies
from refusals import refused
from torch import Tensor, nn

import hpxfer
from hpxfer.recipe import Recipe
from hpxfer.scaling.hps import HPs

WIDER = {**BASE, "width": 64, "expert_width": 128}
HPS = {"lr": 0.02, "adamw_lr": 0.01, "weight_decay": 0.5}
SCALES = {
    "spectral": lambda i, o: math.sqrt(o / i),
    "original": lambda i, o: max(1.0, o / i) ** 0.5,
    "match_rms_adamw": lambda i, o: 0.2 * max(i, o) ** 0.5,
}


def muon(base: Any = None, optimizer: str = "muon", table: str = "completep-moe", **facts: Any) -> Recipe:
    return Recipe.from_hps(table, base or BASE, HPS, optimizer=optimizer, **facts)


def of_transformers(kind: str, optimizer: str = "muon", **changes: Any) -> tuple[nn.Module, Recipe]:
    model = make(kind, **changes)
    shape = hpxfer.shape_of(model)
    table = "completep-moe" if shape.num_experts else "completep"
    made = muon(shape, optimizer, table, gate="normalized_softmax", attention_scale=ATTENTION)
    made.attach(model, shape)
    return model, made


def groups_of(model: nn.Module, made: Recipe) -> list[dict[str, Any]]:
    return made.param_groups(model, hpxfer.roles(model), made.base_shape)


def own(made: Recipe, target: Any = None) -> tuple[OwnGPT, dict[str, str]]:
    shape = hpxfer.Shape(**(target or BASE))
    model = OwnGPT(shape, 16, 8, made.forward_multipliers(shape))
    return multiplies(model, made, shape), roles_of(model)


def draw(size: Sequence[int], seed: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def give_gradients(model: nn.Module, step: int) -> None:
    for seed, tensor in enumerate(model.parameters()):
        tensor.grad = 0.01 * draw(tensor.shape, 100 * step + seed)


# Kind of model -> tensor -> its matrices as [out, in].
PIECES: dict[str, dict[str, Any]] = {
    "gpt2": {
        "transformer.h.0.attn.c_attn.weight": lambda t: t.T.chunk(3),
        "transformer.h.1.mlp.c_fc.weight": lambda t: [t.T],
        "transformer.h.1.mlp.c_proj.weight": lambda t: [t.T],
    },
    "mixtral": {
        "model.layers.1.mlp.experts.gate_up_proj": lambda t: [part for one in t for part in one.chunk(2)],
        "model.layers.1.mlp.experts.down_proj": list,
        "model.layers.0.self_attn.k_proj.weight": lambda t: [t],
    },
    "gpt_oss": {  # gate and input alternate in the columns
        "model.layers.1.mlp.experts.gate_up_proj": lambda t: [one.T[at::2] for one in t for at in (0, 1)],
        "model.layers.1.mlp.experts.down_proj": lambda t: [one.T for one in t],
        "model.layers.0.self_attn.o_proj.weight": lambda t: [t],
    },
}


@pytest.mark.parametrize(("kind", "scale"), list(zip(PIECES, SCALES, strict=True)))
def test_every_matrix_of_a_model_takes_its_own_step(kind: str, scale: str) -> None:
    model, made = of_transformers(kind, f"muon[scale={scale}]")
    optimizer = hpxfer.Muon(groups_of(model, made))
    named = dict(model.named_parameters())
    state = {
        name: [(w.double(), torch.zeros_like(w).double()) for w in cut(named[name].detach().clone())]
        for name, cut in PIECES[kind].items()
    }
    for step in range(3):
        give_gradients(model, step)
        for name, cut in PIECES[kind].items():
            grads = [g.double() for g in cut(named[name].grad)]
            sized = [
                (w, m, g, SCALES[scale](w.shape[1], w.shape[0])) for (w, m), g in zip(state[name], grads, strict=True)
            ]
            state[name] = [plain_step(w, m, g, HPS["lr"], s) for w, m, g, s in sized]
        optimizer.step()
    for name, cut in PIECES[kind].items():
        for found, (wanted, _) in zip(cut(named[name].detach()), state[name], strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-5)


class Fused(nn.Module):
    """Queries of four heads, keys and values of two, in one tensor; and three names for what no size tells apart."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 64, bias=False)
        self.query_key_value = nn.Linear(32, 64, bias=False)
        self.experts = nn.ParameterDict({"both": torch.randn(4, 32, 32), "flat": torch.randn(64, 32)})
        self.lm_head = nn.Linear(32, 48, bias=False)


SHAPE = {"width": 32, "depth": 1, "head_dim": 8, "kv_heads": 2, "num_experts": 4, "num_active": 2, "expert_width": 16}
OF_FUSED = {"qkv.weight": "attn_q+attn_k+attn_v", "lm_head.weight": "readout", "experts.flat": "expert_out"}
OF_FUSED |= {"query_key_value.weight": "readout", "experts.both": "readout"}


def fused(optimizer: str = "muon", **changes: str) -> list[dict[str, Any]]:
    made = muon(SHAPE, optimizer)
    keys = made.forward_multipliers(SHAPE)
    model = Fused()
    with made.attach(model, SHAPE, (), by_hand=keys):
        return made.param_groups(model, {**OF_FUSED, **changes}, SHAPE)


def test_joined_matrices_have_a_scale_each() -> None:
    qkv, flat = (group for group in fused() if "scale" in group)
    assert qkv["parts"] == ((0, 32, 1), (32, 48, 1), (48, 64, 1))
    assert qkv["scale"] == pytest.approx((1.0, 0.5**0.5, 0.5**0.5))
    assert (flat["parts"], flat["axis"]) == (((0, 16, 1), (16, 32, 1), (32, 48, 1), (48, 64, 1)), -2)
    assert flat["scale"] == pytest.approx((2**0.5,) * 4)
    by_head = next(group for group in fused("muon[heads=split]") if group["roles"][0] == "attn_q")
    assert by_head["parts"] == tuple((at, at + 8, 1) for at in range(0, 64, 8))
    assert by_head["scale"] == (0.5,) * 8


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ({"experts.both": "expert_in+expert_gate"}, r"experts\.both .* both have the width 32, .* is_transposed"),
        ({"query_key_value.weight": "attn_q+attn_k+attn_v"}, r"\(attn_q\+attn_k\+attn_v\) .* alternate from head"),
        ({"qkv.weight": "attn_q+attn_k"}, r"side by side as attn_q 32 \+ attn_k 16, .* got 64"),
        ({"qkv.weight": "attn_q+attn_out"}, r"that read and matrices that write the residual stream"),
        ({"qkv.weight": "attn_q+readout"}, r"what Muon moves and what AdamW moves must be tensors of their own"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_by_name_and_role(roles: dict[str, str], said: str) -> None:
    refused(said, fused, **roles)


def test_a_vector_of_a_role_that_muon_moves_is_refused_by_its_role() -> None:
    made = muon(SHAPE)
    model = nn.ModuleDict({"up": nn.Linear(32, 16), "lm_head": nn.Linear(32, 48, bias=False)})
    made.attach(model, SHAPE, (), by_hand=made.forward_multipliers(SHAPE))
    roles = {"up.*": "expert_in", "lm_head.weight": "readout"}
    refused(r"a tensor of role expert_in must be a matrix, got size \(16,\)", made.param_groups, model, roles, SHAPE)


def test_an_expert_without_tokens_takes_no_step_and_keeps_its_momentum() -> None:
    model, made = of_transformers("mixtral")
    groups = [{**group, "weight_decay": 0.0} for group in groups_of(model, made)]
    optimizer = hpxfer.Muon(groups)
    tensor = model.model.layers[0].mlp.experts.gate_up_proj
    give_gradients(model, 0)
    optimizer.step()
    before, momentum = tensor.detach().clone(), optimizer.state[tensor]["momentum"].clone()
    for step in (1, 2):
        give_gradients(model, step)
        tensor.grad[1] = 0.0
        optimizer.step()
    assert torch.equal(tensor[1], before[1])
    assert torch.equal(optimizer.state[tensor]["momentum"][1], momentum[1])
    assert not torch.equal(tensor[0], before[0])


def test_state_and_schedule_work_as_those_of_any_optimizer(tmp_path: Path) -> None:
    """Half of the steps, a checkpoint and the others are the steps of one run."""

    def run(steps: range, model: nn.Module, state: Any = None) -> tuple[hpxfer.Muon, Any]:
        optimizer = hpxfer.Muon(made.param_groups(model, roles, BASE))
        schedule = made.scheduler(optimizer, lambda step: 1.0 / (step + 1))
        if state is not None:
            optimizer.load_state_dict(state[0])
            schedule.load_state_dict(state[1])
        for step in steps:
            give_gradients(model, step)
            optimizer.step()
            schedule.step()
        return optimizer, schedule

    made = muon()
    (model, roles), (other, _) = own(made), own(made)
    other.load_state_dict(model.state_dict())
    optimizer, _ = run(range(4), model)
    assert made.check_lr_ratios(optimizer) == pytest.approx(0.2)
    whole = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    assert optimizer.step(lambda: 3.0) == 3.0
    first, schedule = run(range(2), other)
    torch.save((first.state_dict(), schedule.state_dict()), tmp_path / "state.pt")
    run(range(2, 4), other, torch.load(tmp_path / "state.pt", weights_only=True))
    assert all(torch.equal(whole[name], tensor) for name, tensor in other.named_parameters())


# torch.optim.Muon


@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("scale", list(SCALES))
def test_torch_muon_takes_the_step_of_the_recipe(scale: str, adjust: Any) -> None:
    """Its LR, decay and momentum are ours to a rounding; its direction is in bfloat16, so that angles are compared."""
    made = muon(optimizer=f"muon[scale={scale}]")
    (model, roles), (other, _) = own(made, WIDER), own(made, WIDER)
    other.load_state_dict(model.state_dict())
    groups = made.param_groups(model, roles, WIDER)
    ours = hpxfer.Muon(groups)
    of_muon, of_adamw = hpxfer.torch_muon(made.param_groups(other, roles, WIDER), adjust)
    theirs = torch.optim.Muon(of_muon), torch.optim.AdamW(of_adamw)
    for optimizer in theirs:
        made.scheduler(optimizer, lambda step: 1.0)
    moved = {name: group for group in groups if "scale" in group for name in group["names"]}
    before, last = {name: w.detach().clone() for name, w in model.named_parameters()}, model.blocks[0].attention.out
    for seed, (w, w_other) in enumerate(zip(model.parameters(), other.parameters(), strict=True)):
        near = 4 * torch.eye(*w.shape) if w.ndim > 1 else 0.0
        w.grad = draw(w.shape, seed) * 0.3 + near
        w_other.grad = w.grad.clone()
    last.weight.grad.zero_()  # decay alone
    other.blocks[0].attention.out.weight.grad.zero_()
    for optimizer in (ours, *theirs):
        optimizer.step()
    for (name, w), w_other in zip(model.named_parameters(), other.parameters(), strict=True):
        if name not in moved:
            assert torch.equal(w, w_other), name
            continue
        group, kept = moved[name], 1 - moved[name]["lr"] * moved[name]["weight_decay"]
        momentum = theirs[0].state[w_other]["momentum_buffer"]
        torch.testing.assert_close(momentum, ours.state[w]["momentum"], rtol=1e-6, atol=1e-8)
        if w is last.weight:
            torch.testing.assert_close(w_other, w, rtol=1e-6, atol=1e-8)
            continue
        x, x_other = (
            (kept * before[name] - each.detach()) / (group["lr"] * group["scale"][0]) for each in (w, w_other)
        )
        assert torch.nn.functional.cosine_similarity(x.flatten(), x_other.flatten(), 0) > 0.999, name
        assert x_other.norm() == pytest.approx(x.norm().item(), rel=0.02), name


def test_groups_go_to_the_optimizer_that_they_are_for() -> None:
    made = muon()
    model, roles = own(made)
    groups = made.param_groups(model, roles, BASE)
    said = (
        r"must be that of the recipe, hpxfer\.Muon, or torch\.optim\.Muon with the groups of hpxfer\.torch_muon, got "
    )
    matrices = [group for group in groups if "scale" in group]
    refused(f"{said}AdamW", made.scheduler, torch.optim.AdamW([{**one} for one in groups]), lambda step: 1.0)
    refused(f"{said}Muon", made.scheduler, torch.optim.Muon([{**one} for one in matrices]), lambda step: 1.0)
    refused(f"{said}SGD", made.scheduler, torch.optim.SGD([{**one} for one in matrices]), lambda step: 1.0)
    refused(
        r"hpxfer\.Muon: groups must be those of recipe\.param_groups, got one with params alone",
        hpxfer.Muon,
        model.parameters(),
    )
    for tensor in model.parameters():
        tensor.grad = torch.ones_like(tensor)
    with pytest.raises(TypeError, match="NoneType"):
        torch.optim.AdamW([{**one} for one in groups]).step()
    optimizer = hpxfer.Muon(groups)
    optimizer.param_groups[0]["momentum" if "momentum" in optimizer.param_groups[0] else "eps"] = 0.5
    refused(r"the numbers must be those of recipe\.param_groups", made.check_lr_ratios, optimizer)
    mixtral, made = of_transformers("mixtral")
    said = r"torch\.optim\.Muon: .*gate_up_proj \(expert_in/expert_gate\) must be one matrix, got size \(4, 96, 32\)"
    refused(said, hpxfer.torch_muon, [one for one in groups_of(mixtral, made) if "expert_gate" in one["roles"]])
    refused("must be original or match_rms_adamw, got 'spectral'", hpxfer.torch_muon, [], "spectral")


# The file and the texts


def test_muon_needs_a_second_lr_which_no_other_optimizer_may_have() -> None:
    def made(optimizer: str, hps: Any) -> Recipe:
        return Recipe.from_hps("completep-moe", BASE, hps, optimizer=optimizer)

    without = {name: value for name, value in HPS.items() if name != "adamw_lr"}
    refused(r"hps\.adamw_lr: must be > 0 with muon: AdamW moves all but hidden matrices; got 0", made, "muon", without)
    refused(r"hps\.adamw_lr: must be left out with adamw, which has one LR, got 0\.01", made, "adamw", HPS)
    refused(r"scale must be spectral \| original \| match_rms_adamw, got 'rms'", made, "muon[scale=rms]", HPS)
    spelled = made("muon[router=adamw,scale=original]", HPS)
    assert (spelled.optimizer, spelled.column) == ("muon[scale=original]",) * 2
    assert spelled.hps == HPs(lr=0.02, adamw_lr=0.01, weight_decay=0.5, momentum=0.95)
    assert Recipe.parse(spelled.dump()) == spelled
    assert "adamw_lr: 0.01\n" in spelled.dump()
    assert "adamw_lr" not in made("adamw", without).dump()


def test_explain_says_which_part_moves_a_tensor_and_by_which_scale() -> None:
    model, made = of_transformers("mixtral", "muon[scale=original]")
    text = str(made.explain(model))
    assert "W <- (1 - LR * weight decay) W - LR s X(u), s = sqrt(max(1, out/in)), momentum 0.95" in text
    assert "torch.optim.Muon takes X in bfloat16 whatever the model's precision" in text
    rows = {row["name"]: row for row in made.explain(model).to_dict()}
    gate_up, embedding = (
        rows[name] for name in ("model.layers.0.mlp.experts.gate_up_proj", "model.embed_tokens.weight")
    )
    assert (gate_up["by"], gate_up["lr"], gate_up["eps"], gate_up["scale"]) == ("muon", 0.02, None, [1.5**0.5])
    assert (embedding["by"], embedding["lr"], embedding["eps"], embedding["scale"]) == ("adamw", 0.01, 1e-8, [])
    (line,) = [line.split() for line in text.splitlines() if "layers.0.mlp.experts.gate_up" in line]
    assert line[1:] == ["expert_in+expert_gate", "muon", "4x96x32", "0.176777", "0.02", "1.22474", "-", "0.5"]
    described = made.describe(made.base_shape)
    assert "by" in next(line for line in described.splitlines() if "init std" in line).split()
    assert "  muon: W <- " in described
    qkv = muon(SHAPE).explain(
        nn.ModuleDict({"qkv": nn.Linear(32, 64, bias=False)}), {"*": "attn_q+attn_k+attn_v"}, SHAPE
    )
    assert "qkv.weight: its matrices: s = 1 of 32 x 32, s = 0.707107 of 32 x 16" in str(qkv)


def low_rank(width: int, rank: int, heads: int) -> nn.Module:
    sizes = {"q_b": (rank, 8 * heads), "k": (width, 8 * heads), "v": (width, 8 * heads)}
    return nn.ModuleDict(
        {name: nn.Linear(*size, bias=False) for name, size in {**sizes, "o": (8 * heads, width)}.items()}
    )


@pytest.mark.parametrize("scale", list(SCALES))
def test_a_fan_in_of_its_own_keeps_the_spectral_condition(scale: str) -> None:
    """LR s / sqrt(in out) of Muon over the LR of AdamW is one number at the base and at the target, for each tensor."""
    roles = {"q_b.*": "attn_q@8", "k.*": "attn_k", "v.*": "attn_v", "o.*": "attn_out"}
    found = []
    for width, rank, heads in ((32, 8, 8), (128, 16, 12)):
        model = low_rank(width, rank, heads)
        rows = []
        for optimizer in (f"muon[scale={scale}]", "adamw"):
            base = {"width": 32, "depth": 2, "head_dim": 8, "num_heads": 8, "dense_width": 64}
            hps = HPS if optimizer != "adamw" else {"lr": 0.01}
            made = Recipe.from_hps("completep", base, hps, optimizer=optimizer)
            shape = {**base, "width": width, "num_heads": heads, "dense_width": 2 * width}
            rows.append({row.name: row for row in made.explain(model, roles, shape).rows})
        of_muon, of_adam = rows
        found.append(
            {
                name: row.lr * row.scale[0] / math.sqrt(math.prod(row.size)) / of_adam[name].lr
                for name, row in of_muon.items()
            }
        )
    assert found[1] == pytest.approx(found[0])


def test_other_scales_need_the_outputs_of_the_base() -> None:
    """The LR under sqrt(out/in) has no outputs in it. Those of the first of two low-rank matrices are no shape's."""
    model = low_rank(32, 8, 4)
    model["q_a"] = nn.Linear(32, 8, bias=False)
    roles = {"q_a.*": "attn_q", "q_b.*": "attn_q@8", "k.*": "attn_k", "v.*": "attn_v", "o.*": "attn_out"}
    base = {"width": 32, "depth": 1, "head_dim": 8, "dense_width": 64}
    rows = muon(base, table="completep").explain(model, roles, base).rows
    assert {row.name: row.scale for row in rows}["q_a.weight"] == (0.5,)
    said = r"q_a\.weight \(attn_q\) .* under the scale original .* attn_q has 32 by the target's shape, got 8"
    refused(said, muon(base, "muon[scale=original]", "completep").explain, model, roles, base)
