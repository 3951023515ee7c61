"""A verdict search: less than the grid trains, what the grid says, what is missing; and the rules that judge."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from landscape import LR, Landscape, Ran, expansion_of, run

from hpxfer.search import Outcome
from hpxfer.search.rounds import RoundSearch
from hpxfer.search.verdict import VerdictRounds
from hpxfer.search.verdict_lines import Doubt, all_flops, doubts, lines_of_grid
from hpxfer.search.verdict_plan import Purse, more_trials
from hpxfer.search.verdict_rules import judged_by, rules_of
from hpxfer.spec import parse_sweep
from hpxfer.spec.budget import budget_text
from hpxfer.trial import Expansion, Trial
from hpxfer.verdict.thresholds import ERROR_RATE

THREE_WIDTHS = ("[32, 64]", "[32, 64, 128]")
SEEDS = ("seeds: 2", "seeds: 3")
STAYS = Landscape(optima={"lr": -6.3}, noise=0.002, drift=-1.0, curvature=0.03)


def verdict_expansion(search: str = "{kind: verdict, budget: 18}", *edits: tuple[str, str]) -> Expansion:
    return expansion_of(LR, THREE_WIDTHS, SEEDS, *edits, search=search)


class Drifting(Landscape):
    """The optimum moves under every parameterization."""

    def __call__(self, trial: Trial) -> Outcome:
        moved = trial.shape.width / trial.base.width
        return super().__call__(replace(trial, hps=trial.hps.with_value("lr", trial.hps.lr * moved)))


@cache
def stayed() -> Ran:
    return run(verdict_expansion(), STAYS)


@cache
def drifted() -> Ran:
    return run(verdict_expansion(), Drifting(optima={"lr": -6.3}, noise=0.002, curvature=0.05))


def verdicts(ran: Ran) -> dict[str, str]:
    """Return parameterization -> what the search says of it at its end."""
    return {one.line.parameterization: one.doubt.verdict for one in rounds_of(ran).looks[-1].lines if one.decided}


def rounds_of(ran: Ran) -> VerdictRounds:
    assert isinstance(ran.search, RoundSearch)
    (rounds,) = ran.search.strategies
    assert isinstance(rounds, VerdictRounds)
    return rounds


def share(ran: Ran, expansion: Expansion) -> float:
    """Return the share of the grid's FLOPs that was spent."""
    flops = all_flops(lines_of_grid(expansion))
    return sum(flops[name] for name in ran.trials) / sum(flops.values())


@pytest.mark.slow
@pytest.mark.parametrize("salt", range(3))
def test_it_says_what_the_grid_says_for_less(salt: int) -> None:
    expansion, land = verdict_expansion(), replace(STAYS, salt=salt)
    ran = run(expansion, land)
    lines = lines_of_grid(expansion)
    outcomes = {trial.id: land(trial) for trial in expansion.trials()}
    whole = doubts([line.grid(outcomes, outcomes) for line in lines], rules_of(expansion.spec))
    assert verdicts(ran) == {"completep-moe": "transfers", "sp": "drifts"}
    assert verdicts(ran) == {doubt.finding.parameterization: doubt.verdict for doubt in whole}
    assert share(ran, expansion) < 0.6


def test_the_control_is_trained_only_where_another_parameterization_transfers() -> None:
    ran = drifted()
    assert verdicts(ran) == {"completep-moe": "drifts"}
    assert {label for label, _ in ran.arms()} == {None, "completep-moe"}
    assert "sp: not needed, as nothing else transfers along width" in ran.search.why()


def test_where_nothing_decides_it_trains_the_grid_and_says_what_is_missing() -> None:
    expansion = verdict_expansion()
    ran = run(expansion, Landscape(optima={"lr": -6.3}, noise=0.05, curvature=0.01))
    assert "completep-moe" not in verdicts(ran)
    arms = ran.arms()
    assert arms["completep-moe", 128] == arms["completep-moe", 64] == 18
    last = ran.search.why().splitlines()[-2]
    assert "undecided" in last
    assert "every value is trained with every seed; to decide: " in last
    assert last.rpartition("to decide: ")[2]


def test_a_small_budget_ends_it_and_a_larger_one_goes_on() -> None:
    land = Landscape(optima={"lr": -6.3}, noise=0.05, curvature=0.01)
    small, large = (verdict_expansion(f"{{kind: verdict, budget: {budget}}}") for budget in (10, 14))
    first = run(small, land)
    assert max(first.arms().values()) == 10
    assert "the budget of 10 trials per arm is spent" in first.search.why()
    second = run(large, land, known=first.outcomes)
    assert not first.outcomes.keys() & second.trials.keys()
    assert max(rounds_of(second).purse.of_arm.values()) == 14
    assert len(second.trials) < 20


def test_worker_hours_end_it() -> None:
    expansion = verdict_expansion("{kind: verdict, hours: 0.1}")

    def slow(trial: Trial) -> Outcome:
        outcome = Landscape(optima={"lr": -6.3}, noise=0.05, curvature=0.01)(trial)
        return replace(outcome, seconds=6.0 * trial.shape.width / 32)

    ran = run(expansion, slow)
    spent = sum(outcome.seconds or 0.0 for outcome in ran.outcomes.values())
    assert 300 < spent <= 360
    assert "the 0.1 worker hours are spent; to decide: " in ran.search.why()
    assert "at most 0.1 worker hours in all" in budget_text(expansion.spec)
    more = verdict_expansion("{kind: verdict, hours: 0.2}")
    assert sum(outcome.seconds or 0.0 for outcome in run(more, slow).outcomes.values()) > spent


def test_an_early_look_must_be_surer_than_a_late_one() -> None:
    (doubt, *_) = [one.doubt for one in rounds_of(stayed()).looks[-1].lines]
    unsure = Doubt(finding=replace(doubt.finding, transfer_chance=0.99))
    assert unsure.verdict == "transfers"
    assert unsure.is_decided(0.02)
    assert not unsure.is_decided(0.02 * 0.25)


def test_one_seed_at_a_shape_decides_nothing() -> None:
    expansion = verdict_expansion()
    lines = [line for line in lines_of_grid(expansion) if not line.is_control]
    outcomes = {trial.id: STAYS(trial) for trial in expansion.trials()}
    (whole,) = doubts([lines[0].grid(outcomes, outcomes)], rules_of(expansion.spec))
    largest = {trial.id for trial in expansion.trials() if trial.shape.width == 128 and trial.seed > 0}
    (bare,) = doubts([lines[0].grid(outcomes, outcomes.keys() - largest)], rules_of(expansion.spec))
    assert (whole.verdict, bare.verdict) == ("transfers", "undecided")


def test_a_drift_is_said_when_two_looks_in_a_row_find_it() -> None:
    ran = drifted()
    found = [(one.doubt.verdict, one.decided) for look in rounds_of(ran).looks for one in look.lines]
    assert found == [("drifts", False), ("drifts", True)]


@pytest.mark.parametrize(("error", "num_seeds"), [(0.001, 2), (0.5, 3)])
def test_a_loss_not_known_to_the_limit_gets_seeds_there(error: float, num_seeds: int) -> None:
    expansion = verdict_expansion()
    line = next(line for line in lines_of_grid(expansion) if not line.is_control)
    outcomes = {trial.id: STAYS(trial) for trial in expansion.trials()}
    purse = Purse(budget=18, outcomes=outcomes)
    for shape in line.shapes:
        for trials in shape.trials.values():
            assert all(purse.buy(trial) for trial in trials[:2])
    (doubt,) = doubts([line.grid(outcomes, purse.asked)], rules_of(expansion.spec))
    assert doubt.finding.base_value is not None
    unsure = replace(
        doubt.finding,
        transfer_chance=0.9,
        shapes=tuple(replace(shape, regret_se_nats=error) for shape in doubt.finding.shapes),
    )
    list(more_trials(line, Doubt(finding=unsure), purse, 0.0))
    largest = line.shapes[-1].trials[doubt.finding.base_value]
    assert purse.num_seeds(largest) == num_seeds


def test_the_report_judges_with_the_error_of_the_search() -> None:
    assert rules_of(verdict_expansion("{kind: verdict, budget: 18, error: 0.1}").spec).error == 0.1
    assert rules_of(verdict_expansion().spec).error == 0.02
    assert rules_of(verdict_expansion("grid").spec).error == ERROR_RATE
    limited = rules_of(verdict_expansion("grid", ("seeds: 3", "seeds: 3\njudge: {regret_limit: {octaves: 1}}")).spec)
    assert (limited.loss, limited.octaves) == (None, 1)


OWN = """\
name: own
trainer:
  command: [python, train.py]
  version: "1"
  arms: {scaled: {}, plain: {}}
  loss: LOSS
model: {family: user, own: {d: 8}}
training: {steps: 100, final_window_steps: 10}
axes: {d: [16]}
grid: {lr: [0.01]}
judge: {loss: validation}
"""


@pytest.mark.parametrize("unit", ["nats", "bits per byte", "squared error"])
def test_the_losses_of_a_trainer_have_its_unit(unit: str) -> None:
    spec = parse_sweep(OWN.replace("LOSS", f"{{unit: {unit}}}"))
    for name in ("validation", "final_window"):
        judged = judged_by(spec, name)
        assert (judged.name, judged.unit) == (name, unit)
        assert judged.column("mean_nats") == f"mean_{unit.replace(' ', '_')}"


def test_the_name_is_that_of_the_judged_loss_alone() -> None:
    spec = parse_sweep(OWN.replace("LOSS", "{name: held-out loss}"))
    assert judged_by(spec).words == "held-out loss"
    assert judged_by(spec, "final_window").words == "training loss over the last steps"
    assert judged_by(parse_sweep(OWN.replace("LOSS", "{unit: nats}"))).words == "validation loss"
