"""The plan of a search counts its stacks, tokens and GPU-hours from above, whatever the search then decides."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from landscape import LR, Landscape, expansion_of, search_of
from laws import examples

from hpxfer.plan.hardware import Rate, hardware_of, rate_of
from hpxfer.plan.make import make_plan, most_stacks, search_counts, workers_of
from hpxfer.plan.packing import (
    Device,
    Packer,
)
from hpxfer.plan.plan import Plan
from hpxfer.search import Outcome, Search
from hpxfer.search.kinds import kind_of
from hpxfer.spec.budget import arm_budget
from hpxfer.trial import Expansion
from hpxfer.trial.stack import Stack

TWO_HPS = "{log2: [-9, -4]}\n  init_scale: {log2: [-2, 2]}"
MULTIPLIERS = "multipliers: [attn_v.init_mult, router.lr_mult]"
SEARCHES = {
    "random": expansion_of(LR, search="{kind: random, budget: 14}"),
    "refine": expansion_of(LR, search="refine"),
    "refine of two": expansion_of(
        ("[0.01]", TWO_HPS), ("hps:", "hps:\n  lr: 0.02"), search="{kind: refine, budget: 38, until_octaves: 0.2}"
    ),
    "coordinate": expansion_of(LR, search=f"{{kind: coordinate, passes: 2, {MULTIPLIERS}}}"),
    "coordinate without lr": expansion_of(
        ("lr: [0.01]", "{}"), ("hps:", "hps:\n  lr: 0.02"), search=f"{{kind: coordinate, at: all, {MULTIPLIERS}}}"
    ),
    "coordinate with a budget": expansion_of(LR, search=f"{{kind: coordinate, at: all, budget: 26, {MULTIPLIERS}}}"),
    "staged grid": expansion_of(
        LR, search=f"{{kind: staged-grid, recenters: 1, fine: {{points: 3, ratio: 4}}, {MULTIPLIERS}}}"
    ),
    "verdict": expansion_of(LR, search="{kind: verdict, budget: 12}"),
    "optuna": expansion_of(LR, search="{kind: optuna, sampler: random, budget: 22, batch: 3}"),
}
DEVICES = {
    "a core": Device(num_cpus=1),
    "four cores": Device(num_cpus=4),
    "a GPU": Device(cuda=True, memory_bytes=2**36, num_gpus=1, name="NVIDIA H100"),
    "eight GPUs": Device(cuda=True, memory_bytes=2**36, num_gpus=8, name="NVIDIA H100"),
}


def planned(expansion: Expansion, search: Search, known: dict[str, Outcome], device: Device) -> Plan:
    now = Counter(trial.shape for trial in search.ask(known, ()))
    counts = search_counts(search.progress(), now=now)
    return make_plan(expansion, known, device, counts=counts, bench=Path("none"))


def ran(
    expansion: Expansion, known: dict[str, Outcome], device: Device, land: Landscape, order: random.Random
) -> list[Stack]:
    """Return the stacks that a driver runs, which end in any order; `known` grows."""
    search, flying, out = search_of(expansion), list[Stack](), list[Stack]()
    while True:
        inside = {trial.id for stack in flying for trial in stack.trials}
        asked = search.ask(known, inside)
        new = [
            *Packer(
                device=device, asked=expansion.spec.stack_size, workers=workers_of(expansion.spec.resources, device)
            ).pack(asked)
        ]
        flying += new
        out += new
        if not flying:
            return out
        for trial in flying.pop(order.randrange(len(flying))).trials:
            known[trial.id] = land(trial)


def gpu_hours(stacks: list[Stack], rate: Rate) -> float:
    return (
        sum(rate.trial_s(stack.shape, stack.setting, len(stack.trials)) * len(stack.trials) for stack in stacks) / 3600
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SEARCHES))
@settings(max_examples=examples(5))
@given(data=st.data())
def test_no_run_needs_more_than_its_plan_says(name: str, data: st.DataObject) -> None:
    expansion, device = SEARCHES[name], DEVICES[data.draw(st.sampled_from(sorted(DEVICES)))]
    land = Landscape(
        optima={"lr": data.draw(st.floats(-14, 0)), "router.lr_mult": -3.0, "init_scale": 1.0},
        noise=data.draw(st.sampled_from([0.0, 0.01, 1.0])),
        walls=data.draw(st.sampled_from([{}, {"lr": -4.5}, {"lr": -20.0}])),
    )
    order = random.Random(data.draw(st.integers(0, 2**16)))
    known: dict[str, Outcome] = {}
    whole = ran(expansion, known, device, land, order)
    # Ended anywhere, then planned anew.
    at = data.draw(st.integers(0, len(known)))
    kept = dict(list(known.items())[:at])
    plan = planned(expansion, search_of(expansion), dict(kept), device)
    rest = ran(expansion, kept, device, land, order) if at else whole
    for row in plan.shapes:
        stacks = [stack for stack in rest if stack.shape == row.shape]
        assert len(stacks) <= row.num_stacks
        assert sum(len(stack.trials) for stack in stacks) <= row.num_trials - row.num_done
        assert max((len(stack.trials) for stack in stacks), default=0) <= row.stack_size
    rate = rate_of(hardware_of(device), expansion.spec.precision, Path("none"))
    if device.cuda:
        assert gpu_hours(rest, rate) <= plan.gpu_hours * (1 + 1e-9)


@pytest.mark.parametrize("name", sorted(SEARCHES))
def test_the_rounds_of_an_arm_are_what_its_budget_could_buy(name: str) -> None:
    spec = SEARCHES[name].spec
    assert kind_of(spec).rounds(spec).total() > 0
    assert sum(kind_of(spec).rounds(spec).elements()) * len(spec.seeds) >= arm_budget(spec)


def test_the_dearest_rounds_come_first() -> None:
    def stacks(trials: int) -> int:
        return -(-trials // 4)

    assert most_stacks(0, {1: 1, 2: 1}, stacks) == 0
    assert most_stacks(8, {8: 10**9}, stacks) == 2
    assert most_stacks(3, {8: 1, 1: 2}, stacks) == 1 + 1 + 2
    assert most_stacks(11, {8: 1, 1: 1}, stacks) == 1 + 2 + 2  # two that no round has, a stack each
