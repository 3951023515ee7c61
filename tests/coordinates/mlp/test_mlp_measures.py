"""Measures of the family mlp in a check, against numbers computed in another way; and its figures, as data."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixture_types import Patch
from mlp_runs import ZERO_READOUT
from numpy.typing import NDArray

from hpxfer.coordinates.checking import check
from hpxfer.coordinates.drawing import Panel, draw
from hpxfer.coordinates.mlp import Options, against_limit
from hpxfer.coordinates.mlp.figures import layers_page, papers_page, shown_steps
from hpxfer.coordinates.mlp.observe import of_trials
from hpxfer.coordinates.mlp.own import OwnData, default_training, own_trials
from hpxfer.coordinates.report import AxisReport, CheckReport
from hpxfer.coordinates.write import write_check
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.monomial import width
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.spec.model_section import RouterBias
from hpxfer.train.state import TrainState
from hpxfer.trial.stack import Stack

POINTS, STEPS = (16, 32, 64, 128), 3


@pytest.fixture(autouse=True)
def hardly_any_seeds(monkeypatch: Patch) -> None:
    """No test here asks about a limit, but that it is shown."""
    monkeypatch.setattr(against_limit, "SEEDS", dict.fromkeys(against_limit.SEEDS, 4))
    monkeypatch.setattr(against_limit, "SITES", 256)


def report_of(name: str, options: Options, conventions: Any = None, **more: Any) -> CheckReport:
    given = {"seeds": 3, "steps": STEPS, "points": POINTS, "optimizer": "sgd", "architecture": "mlp", **more}
    return check(parameterization(name, conventions), options=options, **given)


def by_step(axis: AxisReport, measure: str, role: str = "router") -> dict[int, tuple[float, ...]]:
    return {found.step: found.values for found in axis.measures if (found.measure, found.role) == (measure, role)}


def test_a_router_that_starts_at_zero_is_undecided_and_its_update_has_no_ratio_to_nothing() -> None:
    found = report_of("mssp-i", Options(), ZERO_READOUT).axes[0]
    assert by_step(found, "entropy_of_all")[0] == pytest.approx([1.0] * 4)
    assert by_step(found, "concentration_high")[0] == pytest.approx([1.0] * 4)
    assert by_step(found, "logit_rms")[0] == (0.0, 0.0, 0.0, 0.0)
    assert 1 not in by_step(found, "update / now")  # nothing but the readout has moved, and zero over zero is no ratio
    assert not [each for each in found.measures if each.measure.startswith("margin")]  # all experts are active


def watched(
    options: Options, optimizer: Column = "sgd"
) -> tuple[dict[tuple[str, str, int], NDArray[Any]], list[dict[str, NDArray[Any]]], TrainState]:
    """Return what the check measures of two seeds at width 24, and the weights of the same training by step."""
    choice = parameterization("mup-moe")
    shape = Shape(width=24, depth=1, num_experts=4, num_active=4, expert_width=24)
    training = default_training(choice, optimizer)
    trials = own_trials(choice, optimizer, shape, options, training, seeds=range(2), steps=STEPS)
    data = OwnData(options=options)
    measured = of_trials(trials, scale=24.0, steps=STEPS, data=data)
    found = {(each.quantity, each.role, each.step): np.array(each.values) for each in measured}
    state = TrainState(Stack(trials=tuple(trials)), torch.device("cpu"), data=data)
    weights = []
    for step in range(STEPS + 1):
        if step:
            state.update(*state.forward_backward(step - 1))
        weights.append({name: copies[0].detach().numpy().astype(float) for name, copies in state.weights.items()})
    return found, weights, state


def frobenius(x: NDArray[Any]) -> NDArray[Any]:
    return np.sqrt((x.reshape(len(x), -1) ** 2).sum(1))


def test_updates_of_the_router_are_norms_of_what_the_trainer_moved() -> None:
    found, weights, _ = watched(Options(expert_matrices=1))
    router = [each["router"] for each in weights]
    for step in range(1, STEPS + 1):
        update = frobenius(router[step] - router[step - 1])
        nominal = 24.0**-1 * math.sqrt(24 * 4)  # Why Routers Freeze, Table 1
        overs = {"now": frobenius(router[step - 1]), "start": nominal, "first": frobenius(router[1])}
        assert found["update", "router", step] == pytest.approx(update, rel=1e-4)
        for name, over in overs.items():
            assert found[f"update / {name}", "router", step] == pytest.approx(update / over, rel=1e-4), name
    assert not np.allclose(found["update / now", "router", 3], found["update / first", "router", 3], rtol=1e-4)


def test_the_difference_of_experts_is_that_of_all_pairs() -> None:
    found, weights, _ = watched(Options(expert_matrices=1))
    for step in (0, STEPS):
        experts = weights[step]["expert_out"]
        pairs = [(experts[:, i] - experts[:, j]) ** 2 for i in range(4) for j in range(4) if i != j]
        expected = np.sqrt(np.mean(pairs, axis=(0, 2, 3)))
        assert found["expert difference", "expert_out", step] == pytest.approx(expected, rel=1e-5)


def test_shares_below_eps_are_those_of_the_second_moment() -> None:
    """v is an average with weights (1 - beta2) beta2^(age), over the sum of these weights."""
    found, _, state = watched(Options(expert_matrices=1), "adam")
    (trial, _), beta2 = state.stack.trials, 0.95
    assert {each.globals().beta2 for each in state.stack.trials} == {beta2}
    squares = {name: np.zeros((2, 1)) for name in state.weights}
    state.reset()
    for step in range(STEPS):
        output, gradients = state.forward_backward(step)
        for name, copies in gradients.items():
            flat = copies[0].numpy().astype(float).reshape(2, -1)
            squares[name] = beta2 * squares[name] + (1 - beta2) * flat**2
        state.update(output, gradients)
    for name, role in state.roles.items():
        root = np.sqrt(squares[name] / (1 - beta2**STEPS))
        eps = trial.resolved()[role].eps
        share = (root < eps).mean(1)
        assert found["sqrt(v) < eps", role, STEPS] == pytest.approx(share, abs=2 / root.shape[1]), role
    assert any(0.05 < found["sqrt(v) < eps", role, STEPS].mean() < 0.95 for role in state.roles.values())


def test_losses_and_accuracy_are_those_of_the_probe() -> None:
    found, weights, _ = watched(Options(expert_matrices=1))
    data = OwnData(options=Options(expert_matrices=1))
    x, classes = (part[0] for part in data.train_batches(0, 0, 1))
    for step in (0, STEPS):
        for seed in range(2):
            own = {name: each[seed] for name, each in weights[step].items()}
            h = x @ own["input"]
            gates = 1 / (1 + np.exp(-h @ own["router"]))
            experts = np.einsum("pn,enm->pem", h, own["expert_out"])
            f = np.einsum("pe,pem->pm", gates, experts) @ own["readout"]  # the base has one expert
            losses = np.log(np.exp(f).sum(1)) - f[np.arange(len(f)), classes]
            assert found["loss", "probe", step][seed] == pytest.approx(losses.mean(), rel=1e-5)
            assert found["accuracy", "probe", step][seed] == (f.argmax(1) == classes).mean()


@pytest.mark.parametrize("bias", ["learned", "learned_sgd"])
def test_a_learned_bias_with_top_k_is_the_only_mover_of_the_choice(bias: RouterBias) -> None:
    """No rule balances the experts of the check's own model."""
    _, weights, state = watched(Options(expert_matrices=1, router_bias=bias, num_active=2))
    assert not state.router_bias.any()
    assert not np.array_equal(weights[0]["router_logit_bias"], weights[-1]["router_logit_bias"])


def test_top_k_adds_margins_ties_and_changed_experts() -> None:
    found = one_matrix().axes[0]
    assert by_step(found, "tied_share")[0] == (0.0, 0.0, 0.0, 0.0)
    assert set(by_step(found, "changed_share")) == {1, 2, 3}
    assert all(value > 0 for value in by_step(found, "margin_median")[0])
    low, median = (by_step(found, name)[0] for name in ("margin_low", "margin_median"))
    assert all(a <= b for a, b in zip(low, median, strict=True))


def test_updates_over_the_start_fall_with_the_nominal_std() -> None:
    """A zero start has no norm of its own: the one that the table would draw takes its place."""
    found = report_of("mup-moe", Options(expert_matrices=1, gate="softmax"), {"router_init": "zero"}).axes[0]
    update, over = by_step(found, "update"), by_step(found, "update / start")
    experts = 4
    for step in (2, 3):
        ratio = np.array(update[step]) / np.array(over[step])
        norms = [np.sqrt(size * experts) / size for size in POINTS]  # std 1/N, Why Routers Freeze, Table 1
        assert ratio == pytest.approx(norms, rel=1e-5)


def test_an_eps_that_does_not_follow_the_gradients_misses(monkeypatch: Patch) -> None:
    def misses() -> set[tuple[str, str]]:
        found = report_of("mup-i", Options(), optimizer="adam", seeds=8).axes[0]
        return {(line.role, line.quantity) for line in (*found.fits, *found.stability) if line.verdict == "miss"}

    assert not {quantity for _, quantity in misses() if quantity == "gradient / eps"}
    table = PARAMETERIZATIONS.get("mup-i")
    rows = table.rows["adam"]

    def wrong(conventions: Any) -> Any:
        return tuple(replace(row, eps=row.eps * width) if row.role == "expert_in" else row for row in rows(conventions))

    monkeypatch.setitem(PARAMETERIZATIONS._rows, "mup-i", replace(table, rows={**table.rows, "adam": wrong}))
    assert ("expert_in", "gradient / eps") in misses()


# Figures.


@cache
def mssp() -> CheckReport:
    return report_of("mssp-ii", Options(), ZERO_READOUT)


@cache
def one_matrix() -> CheckReport:
    return report_of("mup-moe", Options(expert_matrices=1, gate="softmax", num_active=2))


def panels(report: CheckReport) -> dict[str, Panel]:
    return {panel.title: panel for row in papers_page(report, report.axes[0]).rows for panel in row}


def test_the_papers_layout_has_its_panels() -> None:
    page = papers_page(mssp(), mssp().axes[0])
    assert [len(row) for row in page.rows] == [4, 4, 3, 4]
    assert [key.get_label() for key in page.legend[:-1]] == ["16", "32", "64", "128"]
    loss = panels(mssp())["training loss (probe)"]
    assert [line.label for line in loss.lines] == ["16", "32", "64", "128"]
    assert loss.lines[0].x == (0, 1, 2, 3)
    sent = panels(mssp())["exponent: propagating update"]
    assert [line.label for line in sent.lines] == ["router", "expert in", "expert out"]
    # Behind a zero readout nothing but the readout moves in the first update, and a line is missing there.
    by_label = {line.label: line for line in panels(mssp())["exponent: effective update"].lines}
    assert by_label["readout"].x == (1, 2, 3)
    assert by_label["expert in"].x == (2, 3)
    found = panels(one_matrix())  # a single matrix leaves out what it lacks
    assert "exponent: backward: pieces of df/dh1" not in found
    assert "expert in" not in {line.label for line in found["exponent: gradient"].lines}


def test_sizes_over_updates_are_shown_at_the_largest_scale_and_stored_at_all() -> None:
    report = mssp()
    stored = {(each["quantity"], each["role"]): each for each in report.to_dict(lines=False)["axes"][0]["sizes"]}
    pieces = panels(report)["RMS at width 128: forward: pieces of the experts' sum"]
    assert len(pieces.lines) >= 2
    for line in pieces.lines:
        of = stored[f"h3: {line.label}", "expert_out"]
        assert of["scales"] == [16.0, 32.0, 64.0, 128.0]
        found = {step: rms[-1] for step, rms in zip(of["steps"], of["rms"], strict=True) if rms[-1]}
        assert (line.x, line.y) == (tuple(found), tuple(found.values()))
    fit = next(fit for fit in report.axes[0].fits if (fit.quantity, fit.role, fit.step) == ("change", "readout", 2))
    change = stored["change", "readout"]
    assert change["rms"][change["steps"].index(2)] == list(fit.magnitudes)


def test_layers_have_slopes_at_the_last_step_and_guides_where_something_is_predicted() -> None:
    page = layers_page(mssp(), mssp().axes[0])
    assert shown_steps(20) == (1, 2, 4, 8, 16, 20)
    assert [row[0].y_label for row in page.rows] == ["RMS of the change", "RMS"]
    names = [panel.title.splitlines()[0] for panel in page.rows[0]]
    assert names == ["input features h1", "router logits", "gates", "single experts", "experts' sum h3", "output f"]
    features = page.rows[0][0]
    assert features.guides
    assert "1" not in {line.label for line in features.lines}  # exact zeros have no place on a log axis
    draw(page).draw_without_rendering()


@pytest.mark.slow
@pytest.mark.parametrize("made", [mssp, one_matrix])
def test_all_figures_are_written_and_equal_reports_give_equal_bytes(made: object, tmp_path: Path) -> None:
    assert callable(made)
    report = made()
    axis = report.axes[0].axis
    limit = ("-limit",) if report.axes[0].limit.compared else ()  # a router that chooses without a bias has none
    which = ("", "-papers", "-layers", *limit)
    names = [f"check-{axis}{each}.{kind}" for each in which for kind in ("png", "svg")]
    first, again = (write_check(report, tmp_path / folder) for folder in ("a", "b"))
    assert [path.name for path in first] == ["check.txt", "check.json", *names]
    assert [path.read_bytes() for path in first[2:]] == [path.read_bytes() for path in again[2:]]
