"""Coordinate: one multiplier after the other, and a change is kept only if it wins over the seeds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from landscape import LR, Landscape, Ran, expansion_of, run
from there import there

from hpxfer.scaling.hps import HPs
from hpxfer.search import Outcome
from hpxfer.search.coordinate import Asked, coordinate_entries, coordinate_search, decide, decisions_of
from hpxfer.search.kinds import no_trials
from hpxfer.search.rounds import RoundSearch
from hpxfer.verdict.loss import NATS

ORDER = "multipliers: [attn_q.lr_mult + attn_k.lr_mult, router.lr_mult, attn_v.init_mult]"


def tuned(landscape: Landscape, options: str = ORDER, seeds: int = 3) -> Ran:
    expansion = expansion_of(LR, ("seeds: 2", f"seeds: {seeds}"), search=f"{{kind: coordinate, {options}}}")
    return run(expansion, landscape)


def kept(ran: Ran) -> HPs:
    assert isinstance(ran.search, RoundSearch)
    (played,) = ran.search.play(ran.outcomes)
    return there(there(played.end).best)


PLANTED = {"lr": -6.0, "attn_q.lr_mult": -4.0, "router.lr_mult": -2.0}


def test_it_finds_planted_multipliers_and_leaves_the_others() -> None:
    ran = tuned(Landscape(optima=PLANTED, noise=0.003))
    expected = (("attn_k.lr_mult", 0.0625), ("attn_q.lr_mult", 0.0625), ("router.lr_mult", 0.25))
    assert kept(ran).multipliers == expected
    assert "attn_v.init_mult" in ran.search.why()
    assert {trial.shape.width for trial in ran.trials.values()} == {32}


def test_lr_and_init_stay_fixed_after_the_line() -> None:
    ran = tuned(Landscape(optima=PLANTED))
    assert {trial.hps.lr for trial in ran.trials.values() if trial.hps.multipliers} == {2.0**-6}
    assert {trial.hps.init_scale for trial in ran.trials.values()} == {1.0}


def test_the_next_one_starts_from_what_was_kept() -> None:
    ran = tuned(Landscape(optima=PLANTED))
    for trial in ran.trials.values():
        if "router.lr_mult" in dict(trial.hps.multipliers):
            assert dict(trial.hps.multipliers)["attn_q.lr_mult"] == 0.0625


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
    asked = Asked(entry="router.lr_mult", number=1, ratios=(0.5, 2.0))
    points = tuple(HPs(lr=0.1).with_value("router.lr_mult", ratio) for ratio in (1.0, 0.5, 2.0))
    assert decide(asked, points, [old, *new], noise=2.0).kept == 0
    assert decide(asked, points, [new[0], old, old], noise=2.0).kept is None


def test_divergence_never_wins_and_loses_to_anything() -> None:
    asked = Asked(entry="router.lr_mult", number=1, ratios=(0.5, 2.0))
    points = tuple(HPs(lr=0.1).with_value("router.lr_mult", ratio) for ratio in (1.0, 0.5, 2.0))
    lost, fine = (math.inf, 1.0), (9.0, 9.0)
    assert decide(asked, points, [fine, lost, lost], noise=2.0).kept is None
    assert decide(asked, points, [lost, lost, fine], noise=2.0).kept == 1
    assert decide(asked, points, [lost, lost, lost], noise=2.0).kept is None
    assert "everything diverged" in decide(asked, points, [lost, lost, lost], noise=2.0).text(NATS)


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
    entries = coordinate_entries(spec)
    assert entries[:2] == ("embedding.lr_mult", "embedding.init_mult")
    assert {"router.lr_mult", "expert_out.init_mult", "norm.lr_mult"} <= set(entries)
    # Tied embeddings have no readout; a gain starts at one; the balancing rule moves the router's bias.
    assert not {"readout.lr_mult", "norm.init_mult", "router_bias.lr_mult"} & set(entries)


def test_its_steps_tell_what_was_kept_and_why() -> None:
    ran = tuned(Landscape(optima=PLANTED, noise=0.003))
    search = coordinate_search(ran.search.expansion, no_trials)  # type: ignore[attr-defined]
    steps = list(decisions_of(search.play(ran.outcomes)[0], search.expansion.spec))
    assert [step.entry for step in steps] == [
        "attn_q.lr_mult + attn_k.lr_mult",
        "router.lr_mult",
        "attn_v.init_mult",
    ]
    assert [step.kept is not None for step in steps] == [True, True, False]
    assert steps[1].gains[steps[1].best or 0].mean == pytest.approx(0.2, abs=0.01), "4 x 0.05 of the parabola"
    assert all(gain.error > 0 for step in steps for gain in step.gains)
