"""A receipt names every parameter once, whatever wraps the model, and no check of one raises on any JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from checked_models import GPT_BASE, gpt, gpt_recipe
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.receipts.checks import groups_match, init_digest, init_matches, schedule_keeps_ratios, seeds_differ
from hpxfer.receipts.receipt import changes_since, weights_of, write_groups
from hpxfer.scaling.shape import Shape

pytestmark = [
    pytest.mark.filterwarnings("ignore::hpxfer.recipe.OtherModelWarning"),
    pytest.mark.filterwarnings("ignore::hpxfer.recipe.UnattachedWarning"),
]
SHAPE = Shape(**GPT_BASE)


@pytest.fixture
def _group(tmp_path: Path) -> Iterator[None]:
    """One process that talks to itself."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


WRAPPERS = {
    "plain": lambda module: module,
    "compiled": lambda module: torch.compile(module, backend="eager"),
    "parallel": DistributedDataParallel,
    "compiled parallel": lambda module: torch.compile(DistributedDataParallel(module), backend="eager"),
    "sharded": lambda module: fully_shard(module, mesh=init_device_mesh("cpu", (1,))),
}


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("how", WRAPPERS)
def test_every_wrapper_gives_the_names_and_numbers_of_the_recipe(how: str) -> None:
    torch.manual_seed(3)
    recipe, plain = gpt_recipe(weight_decay=0.1), gpt(SHAPE)
    names = [name for name, _ in plain.named_parameters()]
    roles = hpxfer.roles(plain)
    recipe.init_(plain, roles, SHAPE)
    model = WRAPPERS[how](plain)
    found = hpxfer.receipt(model, torch.optim.AdamW(recipe.param_groups(model, roles, SHAPE)), roles, init=True)
    assert [each["name"] for each in found] == names
    assert {each["held"] for each in found} == {1}
    expected = {row["name"]: row for row in recipe.explain(model, roles, SHAPE).to_dict()}
    for each in found:
        row = expected[each["name"]]
        assert (each["lr"], each["eps"], each["weight_decay"]) == (row["lr"], row["eps"], row["weight_decay"])
        assert (each["role"], each["size"]) == (row["role"], row["size"])
        assert each["peak_lr"] == each["lr"]
    assert groups_match(found, expected).status == "passed"
    assert init_matches(found, expected).status == "passed"
    assert json.loads(json.dumps(found)) == found


def test_a_lost_a_doubled_and_a_strange_parameter_are_named() -> None:
    model = gpt(SHAPE)
    every = dict(model.named_parameters())
    kept = [tensor for name, tensor in every.items() if name != "ln_f.weight"]
    stray = nn.Parameter(torch.zeros(2))
    two = [torch.optim.AdamW([*kept, stray], lr=1e-3), torch.optim.SGD([every["wte.weight"]], lr=1e-2)]
    found = hpxfer.receipt(model, two)
    held = {each["name"]: each["held"] for each in found}
    assert (held["ln_f.weight"], held["wte.weight"], held["wpe.weight"]) == (0, 2, 1)
    assert [each["size"] for each in found if each["name"] is None] == [[2]]
    expected = {name: {"lr": 1e-3} for name in every}
    outcome = groups_match(found, expected)
    assert outcome.status == "failed"
    assert outcome.reason == (
        "no group holds ln_f.weight; more than one group holds wte.weight; "
        "the optimizer holds 1 tensors that are no parameters of the model"
    )


def test_a_frozen_parameter_is_not_missing_and_a_shared_one_counts_once() -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    model["c"] = nn.Linear(3, 3, bias=False)
    model["b"].weight = model["a"].weight
    model["c"].requires_grad_(False)
    found = hpxfer.receipt(model, torch.optim.SGD([model["a"].weight], lr=0.5), {"b.*": "readout", "c.*": "norm"})
    assert [(each["name"], each["role"], each["held"]) for each in found] == [
        ("a.weight", "readout", 1),
        ("c.weight", "norm", 0),
    ]
    assert found[0]["eps"] is None
    assert found[0]["betas"] is None
    assert groups_match(found, {"a.weight": {"lr": 0.5}}).status == "passed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_statistics_are_those_of_the_elements(dtype: torch.dtype) -> None:
    model = nn.Linear(40, 30, bias=False, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    (found,) = hpxfer.receipt(model, optimizer, init=True)
    values = model.weight.detach().double().numpy()
    assert found["std"] == pytest.approx(values.std())
    assert found["mean"] == pytest.approx(values.mean())
    assert found["largest"] == abs(values).max()
    with torch.no_grad():
        model.weight[0, 0] *= 2
    assert hpxfer.receipt(model, optimizer, init=True)[0]["digest"] != found["digest"]


@pytest.mark.parametrize("wrong", [3, None, [torch.zeros(2)], "adam"])
def test_what_is_no_optimizer_is_said(wrong: Any) -> None:
    with pytest.raises(HpxferError, match=r"receipt: optimizer must be one of torch, or a list of such, got \w+"):
        hpxfer.receipt(nn.Linear(2, 2), wrong)


def test_lines_are_appended_one_each_or_it_is_said(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    path = tmp_path / "reports.jsonl"
    path.write_text('{"type":"report","step":1,"loss":2.0}\n')
    groups = hpxfer.receipt(model, torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.25)))
    assert (groups[0]["lr"], groups[0]["betas"]) == (0.25, [0.9, 0.999])
    write_groups(path, 0, groups)
    write_groups(path, 5, [{"name": "a", "lr": float("nan")}])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["type"], line["step"]) for line in lines] == [("report", 1), ("groups", 0), ("groups", 5)]
    assert lines[1]["groups"] == groups
    assert lines[2]["groups"] == [{"name": "a", "lr": None}]
    with pytest.raises(HpxferError, match="the groups cannot be written: No such file"):
        write_groups(tmp_path / "nowhere" / "reports.jsonl", 0, [])
    for step in (-1, 1.5, True):
        with pytest.raises(HpxferError, match="step must be a number of updates"):
            write_groups(path, step, [])  # type: ignore[arg-type]


def test_changes_are_those_of_the_weights() -> None:
    model = nn.Linear(3, 2)
    before = weights_of(model)
    with torch.no_grad():
        model.weight += 0.5
    assert changes_since(model, before) == pytest.approx({"weight": 0.5, "bias": 0.0})
    with pytest.raises(HpxferError, match="got none of bias"):
        changes_since(model, {"weight": before["weight"]})


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES |= st.just(10**400) | st.lists(st.floats(), max_size=3)
KEYS = ("name", "role", "numel", "trained", "held", "lr", "peak_lr", "eps", "weight_decay", "betas", "std", "mean")
NAMED = {
    "name": VALUES | st.sampled_from(["a.b", "c"]),
    "role": VALUES | st.sampled_from(["attn_q", "attn_q+attn_k@3"]),
}
OPTIONAL = {**dict.fromkeys((*KEYS, "largest", "digest"), VALUES), **NAMED}
ENTRIES = st.lists(st.fixed_dictionaries({}, optional=OPTIONAL), max_size=4)
EXPECTED: dict[str, dict[str, Any]] = {
    "a.b": {"lr": 1e-3, "eps": 1e-8, "weight_decay": 0.0, "init_std": 0.1, "betas": (0.9, 0.99)},
    "attn_q": {"lr": 0.0, "init": "ones"},
}
STATES = {"passed", "failed", "not possible"}


@given(ENTRIES)
def test_no_entries_raise(entries: list[dict[str, Any]]) -> None:
    for factor in (1.0, 0.0, None):
        assert groups_match(entries, EXPECTED, factor=factor).status in STATES
    assert init_matches(entries, EXPECTED).status in STATES
    assert schedule_keeps_ratios([{"step": 0, "groups": entries}, {"step": 3, "groups": entries}]).status in STATES
    init_digest(entries)


@given(*(st.dictionaries(st.sampled_from(["init", "batch", "loss"]), VALUES),) * 2)
def test_no_runs_raise(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert seeds_differ(one, other).status in STATES
