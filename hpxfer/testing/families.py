"""The conformance suite of families. Derive a pytest class from `FamilySuite`, and define its fixture `sweep`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from unittest import mock

import pytest
import torch
from torch.autograd.profiler import profile

from hpxfer.data import data_ref
from hpxfer.model.cost import count_params, flops_per_token
from hpxfer.model.families import FAMILIES
from hpxfer.plan import CPU_ALLOCATOR, stack_bytes
from hpxfer.spec import PluginSpec, dump_sweep, model_roles, parse_sweep
from hpxfer.train.state import TrainState
from hpxfer.train.trainer import train
from hpxfer.trial import Ended, Expansion, Stack, Trial, TrialResult

CPU = torch.device("cpu")
MORE = 1.1  # a stack may need so many times what the model of its memory says


def expanded(sweep: str) -> Expansion:
    """Return the expansion of a sweep over its data, which are on this machine."""
    spec = parse_sweep(sweep)
    return Expansion(spec, data_ref(spec.data))


def three_trials(expansion: Expansion) -> tuple[Trial, ...]:
    """Return three trials of the last shape with other HPs and seeds."""
    shape, choice, given = expansion.shapes[-1], expansion.choices[0], next(expansion.trials()).hps
    hps = (given, given.with_value("lr", given.lr / 2), given.with_value("init_scale", 2.0))
    return tuple(expansion.trial(choice, shape, each, seed) for seed, each in enumerate(hps))


def trained(trials: Sequence[Trial]) -> tuple[TrialResult, ...]:
    """Return the results of trials that train in one stack on a CPU."""
    (*_, last) = train(Stack(trials=tuple(trials)), "cpu")
    assert isinstance(last, Ended)
    return last.results


def allocated_peak(run: Callable[[], object]) -> int:
    """Return the most bytes that torch's CPU allocator had given out at once while `run` ran.

    Every allocation and release is an event of the profiler, those inside of operators and of the backward pass too.
    """
    # This profiler leaves its events raw. That of torch.profiler makes a tree of them, slower than the training.
    with profile(use_kineto=True, profile_memory=True) as found:
        run()
    results = found.kineto_results
    assert results is not None
    events = sorted((event for event in results.events() if event.name() == "[memory]"), key=lambda e: e.start_ns())
    held = most = 0
    for event in events:
        held += event.nbytes()
        most = max(most, held)
    return most


def doubled(trial: Trial, *roles: str) -> Trial:
    """Return a trial with twice the forward multipliers of these roles."""
    hps = trial.hps
    for role in roles:
        hps = hps.with_value(f"{role}.forward_mult", 2.0)
    return replace(trial, hps=hps)


def multiplied_roles(trial: Trial) -> list[str]:
    """Return the roles of a trial's parameters whose forward multiplier its model applies."""
    family = FAMILIES.get(trial.setting.family)
    roles = {spec.role for spec in family.parameters(trial.shape, trial.setting)}
    return [role for role in family.forward_roles if role in roles]


class FamilySuite:
    """Derive from it, and define the fixture `sweep`: the text of a sweep of a few steps with two shapes or more.

    Its data are on this machine, such as builtin:stdlib, and the family is registered.
    """

    @pytest.fixture
    def expansion(self, sweep: str) -> Expansion:
        """The trials of the sweep, of which all share the setting."""
        return expanded(sweep)

    @pytest.fixture
    def trials(self, expansion: Expansion) -> tuple[Trial, ...]:
        """Three trials of the last shape with other HPs and seeds."""
        return three_trials(expansion)

    def test_parameters_have_the_roles_of_the_row(self, expansion: Expansion) -> None:
        family = FAMILIES.get(expansion.setting.family)
        for shape in expansion.shapes:
            setting = expansion.setting_at(shape)
            specs = family.parameters(shape, setting)
            assert len({spec.name for spec in specs}) == len(specs), "a name stands twice"
            # A rule may move a router's bias that is no parameter, and a tied readout is that of the embedding.
            rest = {"router_bias", *(["readout"] if setting.tied_embeddings else [])}
            assert {spec.role for spec in specs} - rest == set(model_roles(shape, expansion.spec.model)) - rest

    def test_a_larger_shape_has_more_parameters_and_costs_more(self, expansion: Expansion) -> None:
        first, last = expansion.shapes[0], expansion.shapes[-1]
        small, large = (count_params(shape, expansion.setting_at(shape)) for shape in (first, last))
        assert small.total < large.total
        assert 0 < large.active <= large.total
        assert 0 < flops_per_token(first, expansion.setting) < flops_per_token(last, expansion.setting_at(last))

    def test_a_stored_sweep_has_the_same_trials_without_the_code(self, expansion: Expansion) -> None:
        name, trials = expansion.setting.family, list(expansion.trials())
        if FAMILIES.module(name) is None:
            pytest.skip("a family of hpxfer is always there")
        plugin = PluginSpec(name="suite.py", digest="suite", registers={"family": (name,)})
        text = dump_sweep(expansion.spec.model_copy(update={"plugins": (plugin,)}))
        at_base = {of.parameterization.name for of in trials if of.shape == of.base and of.parameterization}
        with mock.patch.dict(FAMILIES._rows):
            del FAMILIES._rows[name]
            stored = parse_sweep(text, trusted=False)
            found = Expansion(stored, expansion.data, plugins=expansion.plugins, own_at_base=at_base)
            assert [trial.id for trial in found.trials()] == [trial.id for trial in trials]

    def test_a_trial_has_the_same_bits_in_any_stack(self, trials: tuple[Trial, ...]) -> None:
        for trial, together in zip(trials, trained(trials), strict=True):
            (alone,) = trained([trial])
            assert (alone.validation_loss_nats, alone.curves) == (together.validation_loss_nats, together.curves)

    def test_a_stack_may_take_the_numbers_of_another(self, trials: tuple[Trial, ...]) -> None:
        """All that differs between the trials of two stacks stands in `numbers()`, or in the weights."""
        # A captured step knows whether an embedding is multiplied, and is not used where that differs.
        roles = [role for role in multiplied_roles(trials[0]) if role != "embedding"]
        others = tuple(doubled(trial, *roles) for trial in trials)
        state, fresh = (TrainState(Stack(trials=of), CPU) for of in (trials, others))
        state.set_trials(Stack(trials=others))
        state.reset()
        batch = fresh.batch(0)
        assert torch.equal(state.forward(*batch, 0).losses_KT, fresh.forward(*batch, 0).losses_KT)

    def test_every_forward_multiplier_has_an_effect(self, trials: tuple[Trial, ...]) -> None:
        state = TrainState(Stack(trials=trials[:1]), CPU)
        for step in range(3):  # a table may start a matrix at zero
            state.update(*state.forward_backward(step))
        batch = state.batch(0)
        for role in multiplied_roles(trials[0]):
            other = TrainState(Stack(trials=(doubled(trials[0], role),)), CPU)
            other.flat.copy_(state.flat)
            losses = (each.forward(*batch, 0).losses_KT for each in (state, other))
            assert not torch.equal(*losses), f"{role}.forward_mult changes no loss"

    def test_every_parameter_learns(self, trials: tuple[Trial, ...]) -> None:
        state = TrainState(Stack(trials=trials), CPU)
        for step in range(3):
            output, grads = state.forward_backward(step)
            assert output.losses_KT.shape == (len(trials), state.setting.batch_tokens)
            assert output.load_LKE.shape == state.router_bias.shape
            assert bool(output.losses_KT.isfinite().all())
            for name, copies in grads.items():
                assert all(bool(copy.isfinite().all()) for copy in copies), name
            learns = {name: all(bool(copy.flatten(1).any(1).all()) for copy in grads[name]) for name in grads}
            state.update(output, grads)
        assert all(learns.values()), f"no gradient: {', '.join(name for name, does in learns.items() if not does)}"

    def test_the_memory_is_no_more_than_the_row_says(self, trials: tuple[Trial, ...]) -> None:
        for stack in (trials[:1], trials):
            modeled = stack_bytes(trials[0].shape, trials[0].setting, len(stack), cuda=False) / CPU_ALLOCATOR
            assert allocated_peak(partial(trained, stack)) <= MORE * modeled, f"{len(stack)} trials"
