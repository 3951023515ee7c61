"""The samplers that a sweep may name: every misspelling is refused at load, with the line and the list."""

from __future__ import annotations

import inspect
import warnings

import optuna
import pytest
from sweep_text import SWEEP

from hpxfer.errors import HpxferError
from hpxfer.search.samplers import SAMPLERS, make_sampler, quiet, sampler_name, sampler_problems
from hpxfer.spec import parse_sweep


def sweep(section: str, *, grid: str = "lr: [0.005, 0.02]") -> str:
    return SWEEP.replace("lr: [0.01]", grid) + f"search: {{kind: optuna, budget: 16, {section}}}\n"


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_every_name_stands_for_itself_and_its_short_forms(name: str) -> None:
    short = name.removesuffix("Sampler")
    assert {sampler_name(spelling) for spelling in (name, short, short.lower(), f"{short[:2]}-{short[2:]}")} == {name}
    assert issubclass(getattr(optuna.samplers, name), optuna.samplers.BaseSampler)


def test_the_samplers_of_optuna_that_are_left_out_are_those_that_search_no_box() -> None:
    others = {"BaseSampler", "BaseGASampler", "GridSampler", "BruteForceSampler", "PartialFixedSampler", "nsgaii"}
    assert set(optuna.samplers.__all__) - set(SAMPLERS) == others


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("sampler: TPEE", "<sweep>:22: search.sampler: must be one of TPESampler, GPSampler"),
        ("sampler: GridSampler", "use search: grid"),
        ("sampler: BruteForce", "needs a finite space"),
        ("sampler: cma-es", "needs at least two HPs in grid"),
        ("sampler: TPE, sampler_args: {n_startup: 3}", "did you mean 'n_startup_trials'?"),
        ("sampler: TPE, sampler_args: {gamma: 3}", "search.sampler_args.gamma: unknown argument of TPESampler"),
        ("sampler: TPE, sampler_args: {seed: 3}", "the seed stands in search.seed"),
        ("sampler: TPE, sampler_args: {n_startup_trials: 1.5}", "must be int, got 1.5"),
        ("sampler: TPE, sampler_args: {n_startup_trials: true}", "must be int, got True"),
        ("sampler: TPE, sampler_args: {multivariate: 1}", "must be bool or null, got 1"),
        ("sampler: QMC, sampler_args: {qmc_type: x}", "QMCSampler refuses {'qmc_type': 'x'}"),
        ("sampler: NSGAII, sampler_args: {population_size: 1}", "must be greater than or equal to 2"),
    ],
)
def test_what_optuna_does_not_have_is_refused_at_load(section: str, said: str) -> None:
    with pytest.raises(HpxferError) as error:
        parse_sweep(sweep(section))
    assert said in str(error.value)


def test_an_argument_that_does_nothing_any_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def old(*, sigma0: float | None = None, seed: int | None = None) -> object:
        warnings.warn("`sigma0` has been deprecated", FutureWarning, stacklevel=2)
        return object()

    monkeypatch.setattr(optuna.samplers, "CmaEsSampler", old)
    with pytest.raises(HpxferError, match="has been deprecated"):
        make_sampler("CmaEsSampler", {"sigma0": 1.0}, 0)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ((at, said),) = sampler_problems("CmaEsSampler", {}, 2)
    assert at == ("search", "sampler")
    assert "pip install cmaes" in said


def test_what_yaml_can_spell_is_legal_and_nothing_else() -> None:
    assert set(SAMPLERS["CmaEsSampler"]["sigma0"]) == {float, int, type(None)}
    for arguments in SAMPLERS.values():
        assert not {"seed", "gamma", "weights", "constraints_func", "independent_sampler"} & set(arguments)


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_the_table_names_arguments_that_optuna_has(name: str) -> None:
    assert set(SAMPLERS[name]) <= set(inspect.signature(getattr(optuna.samplers, name)).parameters)


def test_optuna_says_as_much_after_as_before(capfd: pytest.CaptureFixture[str]) -> None:
    before = optuna.logging.get_verbosity()
    with quiet():
        optuna.create_study()
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr().err == ""
