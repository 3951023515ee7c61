"""The conformance suite of gates. Derive a pytest class from `GateSuite`, and define its fixture `gate`: the row."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from hpxfer.kernels.backend import TORCH
from hpxfer.kernels.router import SCORES
from hpxfer.model.draws import draw
from hpxfer.model.families import FAMILIES
from hpxfer.model.flat import FlatLayout, gradients
from hpxfer.model.gates import GATES, Gate
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting, Trial

TRIALS, TOKENS, EXPERTS, ACTIVE = 3, 32, 8, 3
SUM_ERROR = 1e-5  # of float32 weights that should sum to one
SHAPE = Shape(width=16, depth=1, num_experts=4, num_active=2, expert_width=16, head_dim=16)
OF_GPT: dict[str, Any] = {
    "family": "gpt",
    "context": 16,
    "data_source": "",
    "data_digest": "",
    "tokenizer": "bytes",
    "vocab_size": 32,
}
OF_RUN: dict[str, Any] = {"batch_tokens": 32, "steps": 1, "final_window_steps": 1, "validation_tokens": 32}
ONE, SCALES = torch.ones(TRIALS, 1, 1), torch.tensor([1.0, 2.0, 0.5]).view(-1, 1, 1)


def logits(seed: int = 0, scale: float = 2.0) -> Tensor:
    """Return random logits [TRIALS, TOKENS, EXPERTS] float32."""
    return scale * torch.randn(TRIALS, TOKENS, EXPERTS, generator=torch.Generator().manual_seed(seed))


def weights(gate: Gate, logits_KTE: Tensor, scale_K11: Tensor = ONE, num_active: int = ACTIVE) -> Tensor:
    """Return the weights [K, T, A] of the active experts, as a model computes them without a balancing bias."""
    scores_KTE = gate.scores(logits_KTE, scale_K11)
    chosen_KTA = scores_KTE.detach().sort(dim=-1, descending=True, stable=True).indices[..., :num_active]
    if gate.active_weights is None:
        return scores_KTE.gather(-1, chosen_KTA)
    return gate.active_weights(logits_KTE.gather(-1, chosen_KTA), scale_K11)


class GateSuite:
    """Derive from it, and define the fixture `gate`: the row under test. It need not be registered."""

    def test_has_a_name_and_a_formula(self, gate: Gate) -> None:
        assert gate.name.isidentifier()
        assert gate.formula
        assert gate.sums_to_one_over in ("active", "all", None)

    def test_shapes_and_dtypes(self, gate: Gate) -> None:
        for found, size in ((gate.scores(logits(), ONE), EXPERTS), (weights(gate, logits()), ACTIVE)):
            assert (found.shape, found.dtype) == ((TRIALS, TOKENS, size), torch.float32)

    def test_the_kernel_chooses_by_the_scores(self, gate: Gate) -> None:
        """The Triton kernel of the router computes the score that the row names, if it names one."""
        if gate.score_in_kernel is not None:
            expected = SCORES[gate.score_in_kernel](logits(), SCALES)
            assert torch.allclose(gate.scores(logits(), SCALES), expected), gate.score_in_kernel

    def test_extreme_logits_give_finite_numbers(self, gate: Gate) -> None:
        for scale in (0.0, 1e-6, 30.0, 1e4):
            given = logits(scale=scale).requires_grad_()
            found = weights(gate, given)
            for tensor in (gate.scores(given, ONE), found, *torch.autograd.grad(found.sum(), given)):
                assert bool(tensor.isfinite().all()), f"logits of size {scale:g}"

    def test_scores_and_weights_are_not_negative(self, gate: Gate) -> None:
        assert bool((gate.scores(logits(), ONE) >= 0).all())
        assert bool((weights(gate, logits()) >= 0).all())

    def test_a_larger_logit_has_no_smaller_score(self, gate: Gate) -> None:
        assert bool((gate.scores(logits(), ONE).gather(-1, logits().argsort(-1)).diff(dim=-1) >= 0).all())

    def test_weights_sum_to_one_as_the_row_says(self, gate: Gate) -> None:
        """To the route scale, over the active experts or over all. A gate that sums to nothing ignores the scale."""
        active, everything = (weights(gate, logits(), SCALES, count).sum(-1) for count in (ACTIVE, EXPERTS))
        expected = SCALES.squeeze(-1).expand(-1, TOKENS)
        for found in {"active": (active, everything), "all": (everything,), None: ()}[gate.sums_to_one_over]:
            assert bool(((found - expected).abs() <= SUM_ERROR * expected).all()), gate.sums_to_one_over
        if gate.sums_to_one_over is None:
            assert torch.equal(active, weights(gate, logits()).sum(-1)), "the route scale has an effect"
            assert not bool(((active - 1).abs() <= SUM_ERROR).all()), "the weights sum to one over the active experts"
        if gate.sums_to_one_over == "all":
            assert bool((active < expected).all()), "the weights sum to one over the active experts alone"

    def test_a_trial_has_the_same_bits_in_any_stack(self, gate: Gate) -> None:
        def run(trials: slice) -> tuple[Tensor, Tensor]:
            leaf = logits()[trials].clone().requires_grad_()
            found = weights(gate, leaf, SCALES[trials])
            return found.detach(), torch.autograd.grad(found.square().sum(), leaf)[0]

        stacked = run(slice(None))
        for trial in range(TRIALS):
            for together, single in zip(stacked, run(slice(trial, trial + 1)), strict=True):
                assert torch.equal(together[trial], single[0]), "the numbers of a trial depend on its neighbors"

    def test_a_token_does_not_depend_on_the_others(self, gate: Gate) -> None:
        changed = logits()
        changed[:, 0] = logits(seed=1)[:, 0]
        assert torch.equal(weights(gate, logits())[:, 1:], weights(gate, changed)[:, 1:])

    def test_gradients_are_those_of_the_weights(self, gate: Gate) -> None:
        """Autograd against finite differences, in float64."""
        leaf = logits()[:1, :3].double().requires_grad_()
        scale = torch.full((1, 1, 1), 1.5, dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda given: weights(gate, given, scale), (leaf,))

    def test_the_router_of_a_model_learns(self, gate: Gate) -> None:
        """Every expert matrix and the router of a small GPT get a gradient that is finite and not zero."""
        setting, hps = Setting(gate=gate.name, **OF_GPT, **OF_RUN), HPs(lr=1.0)
        trial = Trial(id="gate", setting=setting, shape=SHAPE, base=SHAPE, parameterization=None, hps=hps, seed=0)
        family = FAMILIES.get(setting.family)
        with contextlib.nullcontext() if gate.name in GATES else GATES.registered(gate):
            model = family.build([trial], torch.device("cpu"), TORCH)
        layout = FlatLayout(parameters=family.parameters(SHAPE, setting), num_trials=1)
        leaves = layout.leaves(draw(layout, [0], [{role: at.init_std for role, at in trial.resolved().items()}]))
        tokens = torch.randint(setting.vocab_size, (2, 1, 2, 16), generator=torch.Generator().manual_seed(0))
        losses = model(leaves, torch.zeros(SHAPE.depth, 1, SHAPE.num_experts), tokens[0], tokens[1]).losses_KT
        found = gradients(losses, leaves, torch.ones_like(losses))
        for name in ("router", "expert_in", "expert_out"):
            for copy in found[name]:
                assert bool(copy.isfinite().all()), name
                assert bool(copy.any()), f"{name} has no gradient"
