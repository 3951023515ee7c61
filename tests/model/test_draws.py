"""What a seed decides: initial parameters, and the biases of the router-bias schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_trials import BASE, SETTING, trial

from hpxfer.model import draws
from hpxfer.model.counter import normals
from hpxfer.model.draws import NOISE_STEPS, draw, router_noise
from hpxfer.model.flat import FlatLayout, Weights
from hpxfer.model.gpt.layout import gpt_parameters

SMALL = replace(SETTING, norm_gains=True, biases=True, ffn="swiglu")
EXPERT_ROLES = ("expert_in", "expert_gate", "expert_out")
METHODS = ("generator", "counter")
each_method = pytest.mark.parametrize("method", METHODS)
CPU = torch.device("cpu")
STDS = {role: values.init_std for role, values in trial(SMALL).resolved().items()}


def layout(num_trials: int) -> FlatLayout:
    return FlatLayout(parameters=gpt_parameters(BASE, SMALL), num_trials=num_trials)


def drawn(*seeds: int, tied: tuple[bool, ...] = (), method: str = "generator") -> Weights:
    return layout(len(seeds)).weights(draw(layout(len(seeds)), seeds, [STDS] * len(seeds), tied, method=method))


@each_method
def test_draws_are_normal_with_the_std_of_the_role(method: str) -> None:
    weights = drawn(5, method=method)
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


@each_method
def test_a_draw_depends_on_seed_name_and_layer_alone(method: str) -> None:
    alone, stacked = drawn(7, method=method), drawn(3, 7, 7, method=method)
    for name, copies in alone.items():
        for layer, copy in enumerate(copies):
            for slot in (1, 2):
                assert torch.equal(copy[0], stacked[name][layer][slot]), name
    matrices = [alone["attn_q"][0], alone["attn_k"][0], alone["attn_q"][1], drawn(8, method=method)["attn_q"][0]]
    assert len({matrix.numpy().tobytes() for matrix in matrices}) == len(matrices)


@each_method
def test_parameterizations_scale_the_same_draw(method: str) -> None:
    doubled = [STDS, {role: 2 * std for role, std in STDS.items()}]
    weights = layout(2).weights(draw(layout(2), (1, 1), doubled, method=method))
    assert torch.equal(2 * weights["router"][0][0], weights["router"][0][1])


@each_method
def test_a_std_of_zero_is_a_zero_init(method: str) -> None:
    stds = [STDS, {**STDS, "router": 0.0, "readout": 0.0}]
    weights = layout(2).weights(draw(layout(2), (1, 1), stds, method=method))
    for name, copies in weights.items():
        zero = name in ("router", "readout")
        assert all(bool(copy[1].any()) is not zero or "bias" in name for copy in copies), name
        assert zero or all(torch.equal(copy[0], copy[1]) for copy in copies), name


@each_method
def test_tied_experts_start_from_one_draw_and_the_rest_does_not_change(method: str) -> None:
    plain, tied = drawn(5, 6, method=method), drawn(5, 6, tied=(True, False), method=method)
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


def test_the_methods_draw_other_numbers_and_start_the_rest_alike() -> None:
    first, second = drawn(5), drawn(5, method="counter")
    for spec in layout(1).parameters:
        same = spec.role in ("norm", "final_norm", "hidden_bias")
        assert all(torch.equal(a, b) is same for a, b in zip(first[spec.name], second[spec.name], strict=True)), spec


def test_a_counter_draw_is_the_stream_of_seed_name_and_copy_times_the_std() -> None:
    found = drawn(3, 7, tied=(False, True), method="counter")
    for name, role in (("attn_q", "attn_q"), ("expert_in", "expert_in")):
        for row, seed in enumerate((3, 7)):
            values = found[name][1][row]
            shared = role == "expert_in" and seed == 7
            (numbers,) = normals([f"{seed}/{name}/1"], values[0].numel() if shared else values.numel(), CPU, 10**6)
            expected = (numbers[0] * STDS[role]).view(values[0].shape if shared else values.shape)
            assert torch.equal(values, expected.expand_as(values)), name


MIXED = [STDS, {**STDS, "router": 0.0}, STDS, {role: 3 * std for role, std in STDS.items()}, STDS]
MIXED_SEEDS, MIXED_TIED = (4, 4, 9, 4, 2**40), (False, False, True, True, False)


def mixed(rows: tuple[int, ...], device: torch.device = CPU) -> list[bytes]:
    """Return the bits that trial 3 of a stack starts from, where `rows` of five different trials are stacked."""
    stacked = layout(len(rows))
    of = [MIXED[row] for row in rows], [MIXED_TIED[row] for row in rows]
    flat = draw(stacked, [MIXED_SEEDS[row] for row in rows], *of, method="counter", device=device).cpu()
    assert flat.is_contiguous()
    return [copy[rows.index(3)].numpy().tobytes() for copies in stacked.weights(flat).values() for copy in copies]


@pytest.mark.parametrize("least", [2, 14, 1000])
def test_neither_the_stack_nor_the_chunk_changes_a_counter_draw(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = mixed((3,))
    monkeypatch.setattr(draws, "LEAST", least)
    monkeypatch.setattr(draws, "CHUNK", {"cpu": 64})
    for rows in ((3,), (0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (3, 3, 0, 3)):
        assert mixed(rows) == alone


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_counter_draw_has_the_same_bits_on_a_gpu() -> None:
    for rows in ((3,), (0, 1, 2, 3, 4), (3, 3, 0, 3)):
        assert mixed(rows, torch.device("cuda")) == mixed(rows)


def test_router_noise_is_normal_and_depends_on_seed_block_and_step_alone() -> None:
    drawn = router_noise([7, 8], (1, 3), 256, 5)
    assert drawn.shape == (NOISE_STEPS, 2, 2, 256)
    tested = drawn[:, 0, 0]
    assert abs(float(tested.mean())) < 5 * tested.numel() ** -0.5
    assert abs(float(tested.square().mean()) - 1) < 5 * (2 / tested.numel()) ** 0.5
    assert torch.equal(router_noise([7], (3,), 256, 5)[:, 0, 0], drawn[:, 1, 0])
    others = [*drawn.flatten(0, 2), *router_noise([7], (3,), 256, 6)[:, 0, 0]]
    assert len({numbers.numpy().tobytes() for numbers in others}) == len(others) == NOISE_STEPS * 5
