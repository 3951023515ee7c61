"""Refine and coordinate: lines that widen and halve, and multipliers one after the other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from landscape import LR, Landscape, Ran, expansion_of, run
from there import there

from hpxfer.host import NATS
from hpxfer.scaling.hps import HPs
from hpxfer.search import Outcome
from hpxfer.search.coordinate import Decision, coordinate_entries
from hpxfer.search.refine import Bracket, bracket_of
from hpxfer.search.rounds import RoundSearch
from hpxfer.spec.budget import arm_budget
from hpxfer.trial import Expansion


def refining(seeds: int = 2, options: str = "") -> Expansion:
    return expansion_of(LR, ("seeds: 2", f"seeds: {seeds}"), search=f"{{kind: refine{options}}}")


def refined(landscape: Landscape, options: str = "", seeds: int = 2) -> Ran:
    return run(refining(seeds, options), landscape)


def exponents(ran: Ran, width: int = 32) -> list[float]:
    return [math.log2(value) for value in ran.values("lr", width)]


def last_line(ran: Ran, arm: str = "completep-moe/sp") -> str:
    return [line for line in ran.search.why().splitlines() if line.startswith(arm)][-1]


def best(ran: Ran, width: int = 32) -> float:
    of = [trial for trial in ran.trials.values() if trial.shape.width == width]
    return math.log2(min(of, key=lambda trial: ran.outcomes[trial.id].value).hps.lr)


@given(optimum=st.floats(-12, -1), until=st.sampled_from((0.1, 0.25, 0.5, 1.0)), noise=st.sampled_from((0.0, 1e-5)))
def test_a_planted_optimum_lies_in_the_interval_that_it_ends_with(optimum: float, until: float, noise: float) -> None:
    ran = refined(Landscape(optima={"lr": optimum}, noise=noise), f", until_octaves: {until}")
    said = last_line(ran)
    low, high = (float(part.split()[0].removeprefix("2^")) for part in said.partition("interval ")[2].split(" to "))
    assert low - 1e-6 <= optimum <= high + 1e-6
    # Halfway between two points their losses are equal, so that both are the optimum as far as anyone can see.
    assert high - low <= until + 1e-6 or "seeds differ" in said
    assert abs(best(ran) - optimum) <= until / 2


def test_what_it_asks_for_is_widened_and_halved_and_nothing_else() -> None:
    asked = exponents(refined(Landscape(optima={"lr": -3.2})))
    assert asked == [-9, -8, -7, -6, -5, -4, -3.5, -3.25, -3, -2.75, -2.5, -2]
    inside = exponents(refined(Landscape(optima={"lr": -6.9}), ", until_octaves: 1"))
    assert inside == [-9, -8, -7.5, -7, -6.5, -6, -5, -4]


def test_the_widening_ends_and_the_edge_is_said_to_be_a_bound() -> None:
    ran = refined(Landscape(optima={"lr": 5.0}), ", max_octaves: 2.5")
    assert exponents(ran) == [-9, -8, -7, -6, -5, -4, -3, -2]
    assert "a bound, not an optimum" in last_line(ran)
    assert "2.5 octaves beyond" in last_line(ran)
    narrow = refined(Landscape(optima={"lr": -12.0}), ", max_octaves: 0")
    assert exponents(narrow) == [-9, -8, -7, -6, -5, -4]
    assert "a bound, not an optimum" in last_line(narrow)


@pytest.mark.parametrize("optimum", [-13.1, -11.8, -7.9, -4.2, 0.0])
def test_a_line_whose_step_is_longer_than_the_widening_is_widened_and_halved(optimum: float) -> None:
    expansion = expansion_of(("[0.01]", "{log2: [-12, -2], step: 10}"), search="refine")
    ran = run(expansion, Landscape(optima={"lr": optimum}))
    assert abs(best(ran) - optimum) <= 0.25
    assert "bound" not in ran.search.why()
    assert max(ran.arms().values()) <= arm_budget(expansion.spec)


def test_divergence_is_a_wall_and_no_optimum() -> None:
    ran = refined(Landscape(optima={"lr": 0.0}, walls={"lr": -5.5}))
    assert max(exponents(ran)) == -4, "nothing is tried beyond a wall"
    assert "where training diverges" in last_line(ran)
    assert -6 <= best(ran) <= -5.5
    without = refined(Landscape(optima={"lr": -6.0}))
    assert "diverges" not in without.search.why()


def test_if_everything_diverges_lower_values_are_tried() -> None:
    ran = refined(Landscape(optima={"lr": -11.0}, walls={"lr": -10.5}))
    assert "everything diverged" in ran.search.why()
    assert best(ran) == pytest.approx(-11, abs=0.3)
    never = run(expansion_of(LR, search="{kind: refine, max_octaves: 1}"), lambda _: Outcome("diverged"))
    assert "everything diverged" in last_line(never)


def test_other_shapes_get_the_best_value_of_the_base() -> None:
    ran = refined(Landscape(optima={"lr": -6.3}, drift=-1.5), ", until_octaves: 0.25")
    at_base = [line for line in ran.search.why().splitlines() if "from the base" in line]
    assert len(at_base) == 4, "two parameterizations at one other shape: asked and measured"
    chosen = best(ran)
    assert chosen in exponents(ran, 64)
    own = [trial for trial in ran.trials.values() if trial.parameterization and trial.parameterization.name == "sp"]
    assert math.log2(min(own, key=lambda trial: ran.outcomes[trial.id].value).hps.lr) == pytest.approx(-7.8, abs=0.2)
    assert 2.0**chosen in {trial.hps.lr for trial in own}
    alone = run(expansion_of(LR, search="{kind: refine, at: base}"), Landscape(optima={"lr": -6.3}))
    assert {trial.shape.width for trial in alone.trials.values()} == {32}


def test_a_budget_cuts_a_round_to_what_it_buys() -> None:
    ran = refined(Landscape(optima={"lr": -6.3}), ", budget: 16")
    assert ran.arms()[None, 32] == 16, "six points, and two more"
    assert "the budget of 16 trials is spent" in ran.search.why()
    cut = refined(Landscape(optima={"lr": -6.3}), ", budget: 18, until_octaves: 0.1", seeds=2)
    assert cut.arms()[None, 32] == 18


def test_each_hp_of_the_grid_has_a_line_through_the_base_values() -> None:
    edits = (("[0.01]", "{log2: [-9, -4]}\n  init_scale: {log2: [-1, 1]}"), ("hps:", "hps:\n  lr: 0.015625"))
    ran = run(expansion_of(*edits, search="refine"), Landscape(optima={"lr": -7.0, "init_scale": 2.5}))
    for trial in ran.trials.values():
        assert trial.hps.lr == 0.015625 or trial.hps.init_scale == 1.0
    assert "refine init_scale: best init_scale 2^2.5" in ran.search.why()


def test_values_that_are_no_powers_of_two_stay_as_they_are_given() -> None:
    ran = run(expansion_of(("[0.01]", "[0.001, 0.003, 0.01, 0.03]"), search="refine"), Landscape(optima={"lr": -7.0}))
    assert {0.001, 0.003, 0.01, 0.03} <= set(ran.values("lr"))
    assert all(float(f"{value:.6g}") == value for value in ran.values("lr"))


def test_the_bracket_reaches_to_what_is_surely_worse() -> None:
    line = {
        -3.0: (1.5, 1.6),
        -2.0: (1.0, 1.3),  # no worse than the noise
        -1.0: (1.1, 1.1),
        0.0: (1.4, 1.5),
        1.0: (math.inf, 1.0),
    }
    assert bracket_of(line) == Bracket(at=-1.0, low=-3.0, high=0.0, high_diverged=False)


def test_the_line_is_widened_while_the_noise_cannot_exclude_its_edge() -> None:
    """Four seeds that differ by more than an octave changes, and the optimum next to the highest value."""
    said = refined(Landscape(optima={"lr": -5.2}, noise=0.05), seeds=4).search.why()
    assert "is no better than the highest, 2^-4, by more than the noise: widened to 2^-3" in said
    assert "widened" not in refined(Landscape(optima={"lr": -5.2}, noise=1e-4), seeds=4).search.why()


ORDER = "multipliers: [attn_q.lr_mult + attn_k.lr_mult, router.lr_mult, attn_v.init_mult]"


def tuned(landscape: Landscape, options: str = ORDER, seeds: int = 3) -> Ran:
    expansion = expansion_of(LR, ("seeds: 2", f"seeds: {seeds}"), search=f"{{kind: coordinate, {options}}}")
    return run(expansion, landscape)


def kept(ran: Ran) -> HPs:
    assert isinstance(ran.search, RoundSearch)
    ((_, played),) = ran.search.arms(ran.outcomes)
    return there(there(played.end).best)


PLANTED = {"lr": -6.0, "attn_q.lr_mult": -4.0, "router.lr_mult": -2.0}


def test_it_finds_planted_multipliers_and_leaves_the_others() -> None:
    ran = tuned(Landscape(optima=PLANTED, noise=0.003))
    expected = (("attn_k.lr_mult", 0.0625), ("attn_q.lr_mult", 0.0625), ("router.lr_mult", 0.25))
    assert kept(ran).multipliers == expected
    assert "attn_v.init_mult" in ran.search.why()
    assert {trial.shape.width for trial in ran.trials.values()} == {32}
    assert {trial.hps.lr for trial in ran.trials.values() if trial.hps.multipliers} == {2.0**-6}, "fixed by the line"
    assert {trial.hps.init_scale for trial in ran.trials.values()} == {1.0}
    of_router = [dict(trial.hps.multipliers) for trial in ran.trials.values()]
    assert {each["attn_q.lr_mult"] for each in of_router if "router.lr_mult" in each} == {0.0625}, "from what was kept"


def test_without_a_line_the_lr_is_that_of_the_file() -> None:
    edits = (("grid:\n  lr: [0.01]\n", ""), ("hps:", "hps:\n  lr: 0.02\n  multipliers: {router.lr_mult: 4.0}"))
    search = "{kind: coordinate, multipliers: [router.lr_mult], values: [0.5, 2]}"
    ran = run(expansion_of(*edits, search=search), Landscape(optima={"router.lr_mult": 3.0}))
    assert ran.values("lr") == [0.02]
    assert ran.values("router.lr_mult") == [2.0, 4.0, 8.0], "ratios to the value that it starts with"
    assert kept(ran).get("router.lr_mult") == 8.0


def changes(noise: float, options: str = ORDER) -> int:
    """Return how many changes twenty runs keep on a landscape where no multiplier changes anything."""
    lucks = [Landscape(optima={"lr": -6.0}, noise=noise, salt=salt) for salt in range(20)]
    return sum(len(set(kept(tuned(luck, options, seeds=5)).multipliers)) for luck in lucks)


def test_luck_is_rarely_kept_whatever_its_size() -> None:
    """Two standard errors of five seeds, and four chances: 5% of the rounds kept luck in 180, of 60 here."""
    assert changes(0.001) == changes(0.01) <= 8
    assert changes(0.01, f"{ORDER}, noise: 6") == 0


@given(true=st.floats(0.05, 1.0), seeds=st.integers(2, 5))
def test_a_gain_far_above_the_noise_is_kept(true: float, seeds: int) -> None:
    old = tuple(2.0 + 0.001 * seed for seed in range(seeds))
    new = [tuple(loss - true + 1e-4 * (at % 2) for at, loss in enumerate(old)), old]
    asked = Decision(entry="router.lr_mult", ratios=(0.5, 2.0))
    assert asked.decided([old, *new], 2.0).kept == 0
    assert asked.decided([new[0], old, old], 2.0).kept is None


def test_divergence_never_wins_and_loses_to_anything() -> None:
    asked = Decision(entry="router.lr_mult", ratios=(0.5, 2.0))
    lost, fine = (math.inf, 1.0), (9.0, 9.0)
    assert asked.decided([fine, lost, lost], 2.0).kept is None
    assert asked.decided([lost, lost, fine], 2.0).kept == 1
    assert asked.decided([lost, lost, lost], 2.0).kept is None
    assert "everything diverged" in asked.decided([lost, lost, lost], 2.0).text(NATS)


def test_another_pass_goes_on_from_the_last_and_stops_when_nothing_changes() -> None:
    far = Landscape(optima={"lr": -6.0, "router.lr_mult": -8.0})
    once, two = (tuned(far, f"{ORDER}, passes: {number}") for number in (1, 2))
    assert kept(once).get("router.lr_mult") == 2.0**-4
    assert kept(two).get("router.lr_mult") == 2.0**-8
    calm = Landscape(
        optima={"lr": -6.0, **dict.fromkeys(("router.lr_mult", "attn_q.lr_mult", "attn_v.init_mult"), 0.0)}
    )
    assert tuned(calm, f"{ORDER}, passes: 9").trials.keys() == tuned(calm).trials.keys()


def test_ratios_of_their_own() -> None:
    options = f"{ORDER}, values: [0.5], values_of: {{init_mult: [0.25], router.lr_mult: [3]}}"
    ran = tuned(Landscape(optima={"lr": -6.0}), options)
    assert ran.values("attn_q.lr_mult") == [0.5, 1.0]
    assert ran.values("router.lr_mult") == [1.0, 3.0]
    assert ran.values("attn_v.init_mult") == [0.25, 1.0]


def test_a_budget_ends_it_with_what_it_has_kept() -> None:
    ran = tuned(Landscape(optima=PLANTED, noise=0.003), f"{ORDER}, budget: 31")
    assert len(ran.trials) == 3 * (6 + 4), "the line and one whole round of four"
    assert kept(ran).multipliers == (("attn_k.lr_mult", 0.0625), ("attn_q.lr_mult", 0.0625))
    assert "the budget of 31 trials is spent" in ran.search.why()


def test_a_line_whose_best_is_on_its_edge_moves() -> None:
    ran = tuned(Landscape(optima={"lr": -1.0}))
    assert "is the highest: moved" in ran.search.why()
    assert kept(ran).lr == 0.5
    beyond = tuned(Landscape(optima={"lr": 9.0}))
    assert "still the highest after 2 moves: a bound" in beyond.search.why()


def test_if_no_lr_finishes_nothing_is_tuned() -> None:
    expansion = expansion_of(LR, search="{kind: coordinate}")
    ran = run(expansion, lambda _: Outcome("diverged"))
    assert "every lr diverged" in ran.search.why()
    assert all(not trial.hps.multipliers for trial in ran.trials.values())


def test_by_default_it_tunes_every_role_of_the_base() -> None:
    spec = expansion_of(LR, search="coordinate").spec
    entries = [asked.entry for asked in coordinate_entries(spec)]
    assert entries[:2] == ["embedding.lr_mult", "embedding.init_mult"]
    assert {"router.lr_mult", "expert_out.init_mult", "norm.lr_mult"} <= set(entries)
    # Tied embeddings have no readout; a gain starts at one; the balancing rule moves the router's bias.
    assert not {"readout.lr_mult", "norm.init_mult", "router_bias.lr_mult"} & set(entries)
