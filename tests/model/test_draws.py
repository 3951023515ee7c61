"""What a seed decides: initial parameters by either method, router biases, and the counter's bits and statistics."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import special
from tiny_trials import BASE, SETTING, trial

from hpxfer.model import draws
from hpxfer.model.draws import NOISE_STEPS, _mixed, _signed, _table, draw, normals, router_noise, stream, to_normal
from hpxfer.model.flat import FlatLayout, Weights
from hpxfer.model.gpt.layout import gpt_parameters

FULL = replace(SETTING, norm_gains=True, biases=True, ffn="swiglu")
EXPERT_ROLES = ("expert_in", "expert_gate", "expert_out")
METHODS = ("generator", "counter")
CPU = torch.device("cpu")
each_method = pytest.mark.parametrize("method", METHODS)
STDS = {role: values.init_std for role, values in trial(FULL).resolved().items()}


def layout(num_trials: int) -> FlatLayout:
    return FlatLayout(parameters=gpt_parameters(BASE, FULL), num_trials=num_trials)


def drawn_weights(*seeds: int, tied: tuple[bool, ...] = (), method: str = "generator") -> Weights:
    return layout(len(seeds)).weights(draw(layout(len(seeds)), seeds, [STDS] * len(seeds), tied, method=method))


@each_method
def test_draws_are_normal_with_the_std_of_the_role(method: str) -> None:
    weights = drawn_weights(5, method=method)
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
    alone, stacked = drawn_weights(7, method=method), drawn_weights(3, 7, 7, method=method)
    for name, copies in alone.items():
        for layer, copy in enumerate(copies):
            for slot in (1, 2):
                assert torch.equal(copy[0], stacked[name][layer][slot]), name
    matrices = [
        alone["attn_q"][0],
        alone["attn_k"][0],
        alone["attn_q"][1],
        drawn_weights(8, method=method)["attn_q"][0],
    ]
    assert len({matrix.numpy().tobytes() for matrix in matrices}) == len(matrices)


@each_method
def test_parameterizations_scale_the_same_draw_and_a_std_of_zero_is_a_zero_init(method: str) -> None:
    stds = [STDS, {**STDS, "router": 0.0, "readout": 2 * STDS["readout"]}]
    for name, copies in layout(2).weights(draw(layout(2), (1, 1), stds, method=method)).items():
        factor = {"router": 0.0, "readout": 2.0}.get(name, 1.0)
        assert all(torch.equal(factor * copy[0], copy[1]) for copy in copies), name


@each_method
def test_tied_experts_start_from_one_draw_and_the_rest_does_not_change(method: str) -> None:
    plain, tied = drawn_weights(5, 6, method=method), drawn_weights(5, 6, tied=(True, False), method=method)
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


def test_a_counter_draw_is_the_stream_of_seed_name_and_copy_times_the_std() -> None:
    found = drawn_weights(3, 7, tied=(False, True), method="counter")
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
    drawn_weights = router_noise([7, 8], (1, 3), 256, 5)
    assert drawn_weights.shape == (NOISE_STEPS, 2, 2, 256)
    tested = drawn_weights[:, 0, 0]
    assert abs(float(tested.mean())) < 5 * tested.numel() ** -0.5
    assert abs(float(tested.square().mean()) - 1) < 5 * (2 / tested.numel()) ** 0.5
    assert torch.equal(router_noise([7], (3,), 256, 5)[:, 0, 0], drawn_weights[:, 1, 0])
    others = [*drawn_weights.flatten(0, 2), *router_noise([7], (3,), 256, 6)[:, 0, 0]]
    assert len({numbers.numpy().tobytes() for numbers in others}) == len(others) == NOISE_STEPS * 5


NUM = 10_000_000
SMALL = 2**18
GOLDEN = 0x9E3779B97F4A7C15  # the gamma of Java's SplittableRandom() and of Vigna's splitmix64.c
LIMIT = 5.0  # standard errors
EXACT = 1.6e-7  # 1.34 of float32's 2^-23


def drawn(key: str, num: int, chunk: int = 2**16) -> np.ndarray:
    return torch.cat([part[0] for part in normals([key], num, CPU, chunk)]).numpy()


def plain_words(key: str, num: int) -> np.ndarray:
    """Return the 32-bit words of a stream, by the arithmetic of numpy's unsigned integers."""
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    start, gamma = np.frombuffer(digest, dtype="<u8")
    gamma |= np.uint64(1)
    if bin(int(gamma) ^ (int(gamma) >> 1)).count("1") < 24:
        gamma ^= np.uint64(0xAAAAAAAAAAAAAAAA)
    z = np.arange((num + 1) // 2, dtype=np.uint64) * gamma + start
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    halves = np.stack([z & np.uint64(0xFFFFFFFF), z >> np.uint64(32)], axis=1)
    return halves.reshape(-1)[:num].astype(np.int64)


def exact(words: np.ndarray) -> np.ndarray:
    """Return the inverse of the normal distribution at the middle of each signed word's share, in float64."""
    size = np.where(words < 0, -1 - words.astype(np.int64), words.astype(np.int64))
    count = 2 * size + 1  # of 2^33, from 1/2
    center = math.sqrt(2) * special.erfinv(2 * count / 2**33)
    tail = -special.ndtri((2**32 - count) / 2**33)
    return np.where(words < 0, -1, 1) * np.where(size < 2**30, center, tail)


def test_words_are_those_of_splitmix64_with_odd_irregular_gammas_and_counters_of_64_bits() -> None:
    """The first outputs for the seed 1234567 are widely published."""
    one = torch.tensor([[1234567]]), torch.tensor([[_signed(GOLDEN)]])
    expected = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431)
    assert [word % 2**64 for word in _mixed(1, 4, *one)[0].tolist()] == list(expected)
    for key in range(2000):
        start, gamma = stream(str(key))
        assert gamma % 2 == 1
        assert -(2**63) <= start < 2**63
        assert bin((gamma % 2**64) ^ (gamma % 2**64 >> 1)).count("1") >= 24
    # Counters beyond 2^32 wrap nowhere but at 2^64.
    start, gamma = stream("0/wte/0")
    far = 5 * 10**9 + 1
    found = _mixed(far, 2, torch.tensor([[start]]), torch.tensor([[gamma]]))[0]
    moved = _mixed(0, 2, torch.tensor([[_signed((start + far * gamma) % 2**64)]]), torch.tensor([[gamma]]))[0]
    assert torch.equal(found, moved)


@pytest.mark.parametrize("key", ["0/wte/0", "7/expert_in/3", f"{2**63 - 1}/attn_q/11"])
def test_numbers_are_those_of_an_implementation_in_numpy(key: str) -> None:
    expected = exact(plain_words(key, 300_001).astype(np.uint32).view(np.int32))
    assert np.max(np.abs(drawn(key, 300_001) / expected - 1)) < EXACT


def test_bits_never_change() -> None:
    """Ids stand for these numbers, so they are pinned: the coefficients, and the start of a stream."""
    digests = [
        hashlib.sha256(part.tobytes()).hexdigest()[:16] for part in (_table(CPU).numpy(), drawn("0/wte/0", 4096))
    ]
    assert digests == ["ec83c7ed47a3f321", "d2eed8d25acb479d"]


def test_the_inverse_is_exact_to_float32_from_the_center_to_the_last_tail() -> None:
    rng = np.random.default_rng(0)
    octaves = [2**k + rng.integers(0, 2**k, 2000) for k in range(31)]
    sizes = np.concatenate([np.arange(2**12), *octaves, rng.integers(0, 2**31, 500_000)])
    sizes = np.concatenate([sizes, 2**31 - 1 - sizes, 2**30 + np.arange(-50, 50)])
    words = np.concatenate([sizes, -1 - sizes]).astype(np.int32)
    found, expected = to_normal(torch.from_numpy(words)).numpy(), exact(words)
    assert np.max(np.abs(found / expected - 1)) < EXACT
    assert float(found.max()) == -float(found.min()) == pytest.approx(6.3379577, abs=1e-6)
    assert found.dtype == np.float32


def normal_scores(x: np.ndarray) -> dict[str, float]:
    """Return how many standard errors the numbers are from normal ones, by what is looked at."""
    n, x = len(x), x.astype(np.float64)
    out = {
        "mean": x.mean() * n**0.5,
        "variance": (np.mean(x**2) - 1) * (n / 2) ** 0.5,
        "skewness": np.mean(x**3) * (n / 15) ** 0.5,
        "kurtosis": (np.mean(x**4) - 3) * (n / 96) ** 0.5,
    }
    for sigmas in (1, 2, 3, 4, 5):
        expected = n * 2 * special.ndtr(-sigmas)
        out[f"beyond {sigmas}"] = (np.sum(np.abs(x) > sigmas) - expected) / expected**0.5
    # Kolmogorov and Smirnov: the distance times sqrt(n) is above 2.5 with a chance of 7e-6.
    levels, at = special.ndtr(np.sort(x)), np.arange(n + 1) / n
    out["distribution"] = 2 * n**0.5 * max(np.max(at[1:] - levels), np.max(levels - at[:-1]))
    return {name: float(abs(score)) for name, score in out.items()}


@pytest.mark.slow
def test_ten_million_numbers_are_normal() -> None:
    scores = normal_scores(drawn("0/wte/0", NUM))
    assert max(scores.values()) < LIMIT, scores


def test_other_distributions_fail_the_same_test() -> None:
    rng = np.random.default_rng(0)
    assert normal_scores(rng.standard_normal(NUM // 10)).pop("distribution") < LIMIT
    uniforms = (rng.random((12, NUM // 10))).sum(0) - 6  # a sum of twelve, the poor man's normal
    assert normal_scores(uniforms)["kurtosis"] > LIMIT
    assert normal_scores(rng.standard_t(60, NUM // 10))["kurtosis"] > LIMIT


def dependence(x: np.ndarray, y: np.ndarray) -> float:
    """Return the largest of some correlations of two series, in standard errors: values, squares, signs, and mixed."""
    forms = [(x, y), (x**2 - 1, y**2 - 1), (np.sign(x), np.sign(y)), (x, y**2 - 1), (x**2 - 1, y)]
    return max(abs(float(np.mean(a * b) / np.sqrt(np.mean(a**2) * np.mean(b**2)) * len(x) ** 0.5)) for a, b in forms)


def neighbors(x: np.ndarray) -> float:
    """Return the largest dependence on one of the next numbers, up to 64 further on."""
    return max(dependence(x[:-lag], x[lag:]) for lag in (1, 2, 3, 4, 7, 8, 16, 32, 63, 64))


def of_words(weak: Callable[[np.ndarray], np.ndarray], start: int, gamma: int) -> np.ndarray:
    """Return the numbers of a generator that has another way to mix the counter."""
    words = weak(np.arange(SMALL // 2, dtype=np.uint64) * np.uint64(gamma) + np.uint64(start))
    return to_normal(torch.from_numpy(words.view(np.int32))).numpy().astype(np.float64)


def half_mixed(z: np.ndarray) -> np.ndarray:
    """Leave out all but the first multiplication."""
    return (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)


def test_neighbors_are_independent_and_those_of_weak_generators_are_not() -> None:
    assert neighbors(drawn("3/router/1", SMALL).astype(np.float64)) < LIMIT
    for weak in (half_mixed, lambda z: z):
        assert neighbors(of_words(weak, 5, 2**33 + 3)) > 4 * LIMIT


def streams() -> Iterator[str]:
    """Yield the keys of seeds, parameters and copies that lie close together."""
    for seed in (0, 1, 2, 10, 11, 2**32, 2**32 + 1):
        for name in ("wte", "attn_q", "attn_k"):
            for copy in (0, 1):
                yield f"{seed}/{name}/{copy}"


def test_seeds_parameters_and_copies_are_independent() -> None:
    num = SMALL // 2
    rows = torch.cat(list(normals(list(streams()), num, CPU, 2**14)), dim=1).double()
    scores = []
    for form in (rows, rows.square() - 1, rows.sign()):
        unit = form / form.square().mean(1, keepdim=True).sqrt()
        scores.append((unit @ unit.T) / num**0.5)
        scores.append((unit[:, :-1] @ unit[:, 1:].T) / num**0.5)
    for score in scores[::2]:
        score.fill_diagonal_(0.0)
    assert max(float(score.abs().max()) for score in scores) < LIMIT  # 7,875 of them


def test_streams_that_share_a_gamma_and_lie_close_are_not() -> None:
    """Keys that were counted, and not hashed, would give the same stream, moved by a few numbers."""

    def numbers(start: int) -> np.ndarray:
        one = torch.tensor([[_signed(start)]]), torch.tensor([[_signed(GOLDEN)]])
        return to_normal(_mixed(0, SMALL // 2, *one).view(torch.int32))[0].double().numpy()

    first, second = numbers(1), numbers((1 + GOLDEN) % 2**64)
    assert dependence(first[2:], second[:-2]) > 4 * LIMIT


@pytest.mark.parametrize(("num", "chunk"), [(1, 2), (7, 2), (1000, 1), (1000, 34), (1001, 999), (1001, 5000)])
def test_chunks_and_lengths_change_no_number(num: int, chunk: int) -> None:
    parts = list(normals(["1/a/0", "2/a/0"], num, CPU, chunk))
    assert max(part.shape[1] for part in parts) <= chunk + chunk % 2  # what bounds the memory
    together = torch.cat(parts, dim=1)
    assert together.shape == (2, num)
    assert torch.equal(together[1], torch.from_numpy(drawn("2/a/0", 5000)[:num]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_has_the_bits_of_a_cpu() -> None:
    cuda = torch.device("cuda")
    words = torch.cat([torch.arange(-(2**31), 2**31, 4099), torch.arange(-5000, 5000)]).to(torch.int32)
    assert torch.equal(to_normal(words), to_normal(words.to(cuda)).cpu())
    keys = list(streams())
    for chunk in (2**10, 2**20):
        found = torch.cat(list(normals(keys, 100_001, cuda, chunk)), dim=1).cpu()
        assert torch.equal(found, torch.cat(list(normals(keys, 100_001, CPU, 2**16)), dim=1))
