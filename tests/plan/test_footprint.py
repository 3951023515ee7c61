"""The model of a stack's memory, against what training allocates."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kept import kept_bytes
from rank_processes import trained_by_ranks
from tiny_trials import BASE, JOINT, SETTING, text_setting, trial
from torch import Tensor

from hpxfer.data import data_ref
from hpxfer.kernels import head, head_limits
from hpxfer.kernels.head_limits import KEPT_BYTES
from hpxfer.model.gpt.cost import gpt_memory
from hpxfer.plan import footprint as footprint_module
from hpxfer.plan.footprint import CPU_ALLOCATOR, GPU_ALLOCATOR, ONE, Way, footprint, most_trials, stack_bytes
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.spec import parse_sweep
from hpxfer.spec.model_section import Balance
from hpxfer.spec.yaml_file import write_yaml
from hpxfer.testing.families import allocated_peak
from hpxfer.train.optimizer import BLOCK_ELEMENTS
from hpxfer.train.trainer import train
from hpxfer.trial import Setting, Trial, setting_of
from hpxfer.trial.stack import Stack

SMALL = Shape(width=64, depth=2, head_dim=32, num_experts=4, num_active=1, expert_width=64)
LARGE = Shape(width=512, depth=8, head_dim=64, num_experts=4, num_active=1, expert_width=512)
DENSE = {"num_experts": 0, "num_active": 0, "expert_width": 0}
SHORT = {"steps": 3}
GPU = replace(SETTING, context=1024, vocab_size=50304, batch_tokens=32768, precision="bfloat16")

PAPER = replace(SETTING, vocab_size=50304, batch_tokens=2**19)  # its logits take 98 GiB in float32


MODERN = {"norm": "rmsnorm", "positions": "rope", "ffn": "swiglu", "norm_gains": True}
# Trials, tokens per step, changes of the setting, and dimensions.
CASES: dict[str, tuple[int, int, dict[str, Any], dict[str, Any]]] = {
    "base": (2, 512, {}, {}),
    "wide and deep": (1, 512, {}, {"width": 256, "expert_width": 128, "depth": 4}),
    "one block, many tokens": (1, 2048, {}, {"depth": 1}),
    "four of sixteen experts": (2, 512, {}, {"num_experts": 16, "num_active": 4}),
    "swiglu": (2, 512, {"ffn": "swiglu"}, {"num_active": 2, "expert_width": 128}),
    "dense": (2, 512, {"ffn": "swiglu"}, {**DENSE, "dense_width": 192}),
    "some dense blocks": (2, 512, {"moe_every": 2}, {"depth": 3, "dense_width": 128}),
    "gains, biases, clip": (2, 512, {"norm_gains": True, "biases": True, "gradient_clip": 0.5}, {}),
    "tied, sgd": (2, 512, {"tied_embeddings": True, "optimizer": "sgd"}, {}),
    "softmax, bfloat16": (2, 256, {"gate": "softmax", "precision": "bfloat16"}, {}),
    "half precision, many logits": (2, 256, {"precision": "bfloat16", "vocab_size": 2048}, {"num_active": 2}),
    "one wide block": (5, 128, {"ffn": "swiglu", "norm_gains": True}, {"width": 32, "depth": 1, "expert_width": 256}),
    "mixtral": (2, 512, {**MODERN, "gate": "normalized_softmax"}, {"num_active": 2, "head_dim": 8, "kv_heads": 2}),
    "qwen3": (2, 512, {**MODERN, "qk_norm": "head"}, {"num_active": 2, "num_heads": 4, "kv_heads": 2}),
    "layer norms of queries": (2, 512, {"qk_norm": "head", "qk_norm_kind": "layernorm", "norm_gains": True}, {}),
    "gated": (2, 512, {"attention_gate": True, "shared_expert_gate": True}, {"num_shared": 2, "shared_width": 64}),
    "rms norm without gains, relu": (2, 512, {"norm": "rmsnorm", "norm_gains": False, "ffn": "relu"}, {}),
}


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return text_setting(tmp_path_factory.mktemp("data"))


def peak_of(shape: Shape, setting: Setting, count: int) -> int:
    momentum = 0.5 if setting.optimizer == "sgd" else 0.0
    stack = Stack(trials=tuple(trial(setting, shape, seed=k, momentum=momentum) for k in range(count)))
    return allocated_peak(lambda: list(train(stack, "cpu")))


def case_of(name: str, setting: Setting) -> tuple[Shape, Setting, int]:
    count, tokens, changes, dims = CASES[name]
    return replace(SMALL, **dims), replace(setting, **{**SHORT, **changes, **batch(tokens)}), count


def batch(tokens: int) -> dict[str, int]:
    return {"batch_tokens": tokens, "validation_tokens": tokens}


@pytest.mark.parametrize("name", CASES)
def test_the_model_is_within_a_tenth_of_what_training_allocates(name: str, setting: Setting) -> None:
    """The trainer runs three steps, one of which logs the size of its update, and a validation."""
    shape, mine, count = case_of(name, setting)
    modeled = footprint(shape, mine, count, cuda=False).total
    assert modeled == pytest.approx(peak_of(shape, mine, count), rel=0.1)


# Changes of the setting, dimensions, and the way. The batch has 2048 tokens.
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any], Way]] = {
    "pieces": ({"accumulation_tokens": 512}, {}, ONE),
    "pieces in lanes": ({"accumulation_tokens": 512, "accumulation_lanes": 2}, {}, ONE),
    "two pieces at once": ({"accumulation_tokens": 512}, {}, Way(pieces=2)),
    "all pieces at once": ({"accumulation_tokens": 256, "ffn": "swiglu"}, {"num_active": 2}, Way(pieces=8)),
    "blocks again": ({}, {"depth": 4}, Way(recompute=True)),
    "pieces, blocks again": ({"accumulation_tokens": 512}, {"depth": 4, "num_active": 2}, Way(recompute=True)),
    "tied": ({"accumulation_tokens": 512, "tied_embeddings": True, "vocab_size": 2048}, {}, Way(pieces=2)),
    "modern": ({**MODERN, "accumulation_tokens": 1024, "qk_norm": "head"}, {"depth": 4}, Way(recompute=True)),
    "balanced": ({"accumulation_tokens": 512, "balance": Balance(aux="switch")}, {"depth": 4}, Way(recompute=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_the_model_follows_the_way_a_batch_is_computed(name: str, setting: Setting) -> None:
    changes, dims, way = WAYS[name]
    shape, mine = replace(SMALL, **dims), replace(setting, **{**SHORT, **batch(2048), **changes})
    weight = 0.1 if "balance" in changes else 0.0
    trials = tuple(trial(mine, shape, seed=k, aux_weight=weight) for k in range(2))
    stack = Stack(trials=trials, pieces=way.pieces, recompute=way.recompute)
    peak = allocated_peak(lambda: list(train(stack, "cpu")))
    assert footprint(shape, mine, 2, cuda=False, way=way).total == pytest.approx(peak, rel=0.1)
    # The model of a whole batch that keeps everything is found to be another one.
    whole = replace(mine, accumulation_tokens=None, accumulation_lanes=1)
    assert footprint(shape, whole, 2, cuda=False).total != pytest.approx(peak, rel=0.1)


MEASURED = """
from hpxfer.testing.families import allocated_peak
from hpxfer.train import trainer
plain = trainer.train
def train(*args, **options):
    events = []
    peak = allocated_peak(lambda: events.extend(plain(*args, **options)))
    open({path!r}, "w").write(str(peak))
    return iter(events)
trainer.train = train
"""


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [2, 4])
def test_the_model_is_within_a_tenth_of_what_a_rank_allocates(lanes: int, setting: Setting, tmp_path: Path) -> None:
    pieces = {"accumulation_tokens": 128, "accumulation_lanes": lanes}
    shape = replace(SMALL, width=256, expert_width=256)
    mine = replace(setting, **SHORT, **batch(512), **pieces)
    paths = [tmp_path / f"{rank}" for rank in range(2)]
    preludes = {rank: MEASURED.format(path=str(path)) for rank, path in enumerate(paths)}
    for found in trained_by_ranks(Stack(trials=(trial(mine, shape),)), 2, preludes=preludes):
        assert not isinstance(found, str), found
    modeled = footprint(shape, mine, 1, cuda=False, way=Way(ranks=2)).total
    for path in paths:
        assert modeled == pytest.approx(int(path.read_text()), rel=0.1)


WIDE = Shape(width=2880, depth=8, head_dim=64, num_experts=16, num_active=4, expert_width=2880)
MSSP = Shape(width=2048, depth=8, head_dim=64, num_experts=64, num_active=32, expert_width=1024)
PAPERS = replace(GPU, batch_tokens=2**19, accumulation_tokens=2**16, tied_embeddings=True)
GIGA = 10**9


@pytest.mark.parametrize(
    ("shape", "changes", "way", "least", "most"),
    [
        (LARGE, {}, ONE, 5, 30),
        (LARGE, {"accumulation_tokens": None}, ONE, 40, 74),
        (WIDE, {}, Way(recompute=True), 45, 80),
        (MSSP, {"tied_embeddings": False}, Way(recompute=True), 45, 80),
        (MSSP, {"tied_embeddings": False}, ONE, 80, 139),
    ],
    ids=["base", "base, whole", "2.5B", "mssp", "mssp, all kept"],
)
def test_the_papers_models_fit(shape: Shape, changes: dict[str, Any], way: Way, least: int, most: int) -> None:
    """Without what the allocator takes. A way that forgets the state of a model would lie below `least`."""
    mine = replace(PAPERS, **changes)
    assert least * GIGA < footprint(shape, mine, 1, cuda=True, way=way).total < most * GIGA


def test_logits_that_the_head_computes_again_are_one_piece(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(setting, **SHORT, vocab_size=2048, **batch(1024))
    kept = peak_of(SMALL, few, 1)
    assert footprint(SMALL, few, 1, cuda=False).total == pytest.approx(kept, rel=0.1)
    for module in (head, head_limits, footprint_module):
        monkeypatch.setattr(module, "KEPT_BYTES", 0)
    monkeypatch.setattr(head_limits, "CPU_PIECE_BYTES", 2**20)
    again = peak_of(SMALL, few, 1)
    assert again < 0.7 * kept
    modeled = footprint(SMALL, few, 1, cuda=False)
    assert modeled.total == pytest.approx(again, rel=0.1)
    # A model that counts all logits is found.
    assert modeled.total + 4 * 1024 * 2048 != pytest.approx(again, rel=0.1)


GPU_CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "base": ({}, {}, 1),
    "two of eight": ({}, {"num_experts": 8, "num_active": 2}, 1),
    "swiglu, gains, shared": (
        {"ffn": "swiglu", "norm_gains": True, "biases": True},
        {"num_shared": 1, "shared_width": 512, "num_active": 2},
        1,
    ),
    "dense": ({}, {**DENSE, "dense_width": 512}, 1),
    "many experts": ({"gate": "softmax"}, {"num_experts": 64, "num_active": 8}, 1),
    "sixteen small trials": (
        {"vocab_size": 256, "context": 256, "batch_tokens": 8192},
        {"width": 128, "depth": 4, "head_dim": 32, "expert_width": 128},
        16,
    ),
    "the batch of the paper": ({"batch_tokens": 2**19}, {}, 1),
}


@pytest.mark.first
@pytest.mark.parametrize("name", GPU_CASES)
def test_what_the_triton_path_keeps_at_real_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors without data run the model of a GPU: its operations say what they would return and keep."""
    changes, dims, count = GPU_CASES[name]
    mine, shape = replace(GPU, **changes), replace(LARGE, **dims)
    monkeypatch.setattr(head_limits, "CPU_PIECE_BYTES", head_limits.GPU_PIECE_BYTES)
    logits = 2 * count * mine.batch_tokens * mine.vocab_size
    memory, trials = gpt_memory(shape, mine, True), [trial(mine, shape, seed=k) for k in range(count)]
    modeled = count * (sum(memory.parts.values()) + memory.ends) + (logits if logits <= KEPT_BYTES else 0)
    assert modeled == pytest.approx(kept_bytes(trials, partial(ids_of, mine, count)), rel=0.1)


def ids_of(setting: Setting, count: int) -> tuple[Tensor, Tensor]:
    ids = torch.zeros(count, setting.batch_tokens // setting.context, setting.context, dtype=torch.int64)
    return ids, ids


def test_a_step_that_logs_its_update_holds_most_where_tokens_are_few(setting: Setting) -> None:
    few, many = (replace(setting, **batch(tokens)) for tokens in (64, 4096))
    assert footprint_module._BUFFER_BYTES == 4 * BLOCK_ELEMENTS
    assert footprint(SMALL, few, 2, cuda=False).moment == "probe"
    assert footprint(SMALL, many, 2, cuda=False).moment in ("head", "block")
    assert stack_bytes(SMALL, few, 2, cuda=False) == int(CPU_ALLOCATOR * footprint(SMALL, few, 2, cuda=False).total)
    assert stack_bytes(SMALL, few, 2, cuda=True) == int(GPU_ALLOCATOR * footprint(SMALL, few, 2, cuda=True).total)


@given(
    st.sampled_from((BASE, JOINT, replace(BASE, width=512, depth=8))),
    st.sampled_from((32, 4096, 2**19)),
    st.floats(2**20, 2**40),
    st.booleans(),
)
def test_the_largest_stack_and_every_smaller_one_fit(shape: object, tokens: int, room: float, cuda: bool) -> None:
    setting = replace(PAPER, batch_tokens=tokens)

    def need(number: int) -> int:
        return stack_bytes(shape, setting, number, cuda=cuda)  # type: ignore[arg-type]

    most = most_trials(shape, setting, room, cuda=cuda)  # type: ignore[arg-type]
    sample = {1, 2, most // 2, most - 1, most, KEPT_BYTES // (4 * tokens * 50304)}
    assert all(need(number) <= room for number in sample if 1 <= number <= most)
    assert need(most + 1) > room


# Trials, width, experts, active, expert width, depth, batch, optimizer; and what holds most.
ROUTED: dict[str, tuple[tuple[int, int, int, int, int, int, int, str], str]] = {
    "of the search": ((8, 128, 8, 8, 16, 1, 50, "sgd"), "probe"),
    "top-2, adam": ((4, 256, 8, 2, 16, 1, 50, "adamw"), "probe"),
    "deep, many samples": ((2, 64, 4, 4, 64, 6, 256, "adamw"), "block"),
    "mostly routers": ((2, 512, 64, 2, 4, 1, 32, "sgd"), "probe"),
}


@pytest.mark.parametrize("name", ROUTED)
def test_the_model_of_measured_routers_is_within_a_tenth_too(name: str) -> None:
    (count, width, experts, active, hidden, depth, batch, optimizer), moment = ROUTED[name]
    base = {"width": width, "depth": depth, "num_experts": experts, "num_active": active, "expert_width": hidden}
    sweep = {
        "name": "s",
        "model": {"family": "mlp", "base": base},
        "data": {"source": "builtin:teacher/polynomial"},
        "training": {"batch_samples": batch, "validation_samples": batch, "steps": 3, "optimizer": optimizer},
        "parameterizations": ["sp"],
        "axes": {"width": [width]},
        "grid": {"lr": [0.01]},
    }
    sweep["model"]["mlp"] = {"loss": "squared_error"}
    spec = parse_sweep(write_yaml(sweep), "s")
    setting, shape = setting_of(spec, data_ref(spec.data)), spec.base_shape
    hps = HPs(lr=0.01, momentum=0.5 if optimizer == "sgd" else 0.0)
    trials = tuple(
        Trial(id=str(k), setting=setting, shape=shape, base=shape, parameterization=None, hps=hps, seed=0)
        for k in range(count)
    )
    found = footprint(shape, setting, count, cuda=False)
    assert found.moment == moment
    assert found.total == pytest.approx(allocated_peak(lambda: list(train(Stack(trials=trials), "cpu"))), rel=0.1)
    assert found.parts["measures of routers"] > 0
