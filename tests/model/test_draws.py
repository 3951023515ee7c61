"""What a seed decides: initial parameters, and the biases of the router-bias schedule."""

from __future__ import annotations

from dataclasses import replace

import torch
from tiny_trials import BASE, SETTING, trial

from hpxfer.model.draws import NOISE_STEPS, draw, router_noise
from hpxfer.model.flat import FlatLayout, Weights
from hpxfer.model.gpt.layout import gpt_parameters

SMALL = replace(SETTING, norm_gains=True, biases=True, ffn="swiglu")
EXPERT_ROLES = ("expert_in", "expert_gate", "expert_out")
STDS = {role: values.init_std for role, values in trial(SMALL).resolved().items()}


def layout(num_trials: int) -> FlatLayout:
    return FlatLayout(parameters=gpt_parameters(BASE, SMALL), num_trials=num_trials)


def drawn(*seeds: int, tied: tuple[bool, ...] = ()) -> Weights:
    return layout(len(seeds)).weights(draw(layout(len(seeds)), seeds, [STDS] * len(seeds), tied))


def test_draws_are_normal_with_the_std_of_the_role() -> None:
    weights = drawn(5)
    for tensor in layout(1).parameters:
        values = torch.stack([copy.flatten() for copy in weights[tensor.name]]).flatten()
        if tensor.role in ("norm", "final_norm"):
            assert bool((values == 1.0).all())
        elif tensor.role == "hidden_bias":
            assert not values.any()
        else:
            normal = values / STDS[tensor.role]
            # Five standard errors of the mean and of the second moment.
            assert abs(float(normal.mean())) < 5 * values.numel() ** -0.5
            assert abs(float(normal.square().mean()) - 1) < 5 * (2 / values.numel()) ** 0.5


def test_a_draw_depends_on_seed_name_and_layer_alone() -> None:
    alone, stacked = drawn(7), drawn(3, 7, 7)
    for name, copies in alone.items():
        for layer, copy in enumerate(copies):
            for slot in (1, 2):
                assert torch.equal(copy[0], stacked[name][layer][slot]), name
    matrices = [alone["attn_q"][0], alone["attn_k"][0], alone["attn_q"][1], drawn(8)["attn_q"][0]]
    assert len({matrix.numpy().tobytes() for matrix in matrices}) == len(matrices)


def test_parameterizations_scale_the_same_draw() -> None:
    doubled = [STDS, {role: 2 * std for role, std in STDS.items()}]
    weights = layout(2).weights(draw(layout(2), (1, 1), doubled))
    assert torch.equal(2 * weights["router"][0][0], weights["router"][0][1])


def test_a_std_of_zero_is_a_zero_init() -> None:
    stds = [STDS, {**STDS, "router": 0.0, "readout": 0.0}]
    weights = layout(2).weights(draw(layout(2), (1, 1), stds))
    for name, copies in weights.items():
        zero = name in ("router", "readout")
        assert all(bool(copy[1].any()) is not zero or "bias" in name for copy in copies), name
        assert zero or all(torch.equal(copy[0], copy[1]) for copy in copies), name


def test_tied_experts_start_from_one_draw_and_the_rest_does_not_change() -> None:
    plain, tied = drawn(5, 6), drawn(5, 6, tied=(True, False))
    for tensor in layout(1).parameters:
        for before, after in zip(plain[tensor.name], tied[tensor.name], strict=True):
            assert torch.equal(before[1], after[1]), tensor.name
            experts = after[0]
            if tensor.role not in EXPERT_ROLES:
                assert torch.equal(before[0], experts), tensor.name
                continue
            assert not any(torch.equal(before[0][0], tensor) for tensor in before[0][1:]), tensor.name
            assert all(torch.equal(experts[0], expert) for expert in experts[1:]), tensor.name
            normal = experts[0] / STDS[tensor.role]
            assert abs(float(normal.square().mean()) - 1) < 5 * (2 / normal.numel()) ** 0.5
    starts = [tied[role][layer][0] for role in EXPERT_ROLES for layer in range(BASE.depth)]
    assert len({start.numpy().tobytes() for start in starts}) == len(starts)


def test_router_noise_is_normal_and_depends_on_seed_block_and_step_alone() -> None:
    drawn = router_noise([7, 8], (1, 3), 256, 5)
    assert drawn.shape == (NOISE_STEPS, 2, 2, 256)
    tested = drawn[:, 0, 0]
    assert abs(float(tested.mean())) < 5 * tested.numel() ** -0.5
    assert abs(float(tested.square().mean()) - 1) < 5 * (2 / tested.numel()) ** 0.5
    assert torch.equal(router_noise([7], (3,), 256, 5)[:, 0, 0], drawn[:, 1, 0])
    others = [*drawn.flatten(0, 2), *router_noise([7], (3,), 256, 6)[:, 0, 0]]
    assert len({numbers.numpy().tobytes() for numbers in others}) == len(others) == NOISE_STEPS * 5
