"""What papers claim, as data: the rows of every table imply it, in the GPT and in the block of the papers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import block_claims
import pytest
from gpt_claims import STABLE, claims_of
from paper_claims import predict

from hpxfer.coordinates.cases import mlp_path, own_axes, own_case
from hpxfer.coordinates.derive import derive
from hpxfer.coordinates.measure import Observation, Prediction
from hpxfer.coordinates.mlp import NAMES, Options
from hpxfer.coordinates.networks import gpt_network, mlp_network
from hpxfer.coordinates.path_facts import path_facts
from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import Parameterization, parameterization, ratios
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column
from hpxfer.scaling.tables import PARAMETERIZATIONS

COLUMNS: list[tuple[str, Column]] = [
    (table.name, optimizer)
    for table in PARAMETERIZATIONS.rows()
    for optimizer in table.rows
    if table.name != "sp" and optimizer != "muon"  # derived from adam by the law of test_laws
]
BASE = Shape(width=32, depth=2, num_experts=4, num_active=2, expert_width=32, head_dim=8, dense_width=64)
WIDE = {"width": 64, "expert_width": 64, "dense_width": 128}
MORE = {"num_experts": 8, "num_active": 4}
# Axis or regime -> what moves.
MOVES: dict[str, dict[str, int]] = {
    "width": WIDE,
    "depth": {"depth": 8},
    "experts": MORE,
    "expert_ratio": {"expert_width": 128},
    "I": WIDE,
    "II": {**WIDE, **MORE, "expert_width": 32},
    "III": {**WIDE, **MORE},
}


def variants(name: str, without: Sequence[str] = ()) -> Iterator[Parameterization]:
    """Yield a table under its default conventions, and under every other value of a single one."""
    yield parameterization(name)
    for key, convention in parameterization(name).table.conventions.items():
        for value in convention.values():
            if value != convention.default and key not in without:
                with suppress(HpxferError):  # it excludes the default of another convention
                    yield parameterization(name, {key: value})


def same(derived: Iterable[Prediction], claimed: Sequence[Prediction], where: str) -> int:
    """Assert that every exponent that both give is the same, and return how many these are."""
    compared = 0
    for own in derived:
        seen = Observation(quantity=own.quantity, role=own.role, layer=None, step=own.first, scale=1.0, values=(1.0,))
        theirs = next((each for each in claimed if each.is_about(seen)), None)
        if theirs is None or any(each.exponent is None and not each.zero for each in (theirs, own)):
            continue
        at = f"{where}: {own.role} {own.quantity} at step {own.first}, {theirs.source}"
        assert own.zero == theirs.zero, at
        assert own.exponent == pytest.approx(theirs.exponent, abs=1e-6), at
        compared += 1
    return compared


@pytest.mark.parametrize(("name", "optimizer"), COLUMNS)
def test_rows_imply_what_papers_claim_of_the_gpt(name: str, optimizer: Column) -> None:
    for choice in variants(name):
        compared = 0
        dense = not any(row.role == "router" for row in choice.rows(optimizer))
        for axis in own_axes(choice, optimizer):
            case = own_case(choice, optimizer, axis, None, dense=dense)
            base, model, points = case.spec.base_shape, case.spec.model, case.axis.points
            path, scales = [point.shape for point in points], [point.scale for point in points]
            network = gpt_network(path[-1], gated=False)
            facts = path_facts(
                base,
                path,
                scales,
                network=network,
                gate=model.gate,
                tied_embeddings=model.tied_embeddings,
                optimizer=optimizer,
            )
            claimed = predict(claims_of(choice, optimizer), scales, [ratios(base, shape) for shape in path])
            compared += same(derive(choice, optimizer, facts), claimed, f"{choice.label()} {axis}")
        assert compared >= 20, choice.label()


@pytest.mark.parametrize("gate", ["sigmoid", "normalized_softmax"])
@pytest.mark.parametrize("matrices", [1, 2])
@pytest.mark.parametrize(
    ("name", "optimizer"), [each for each in COLUMNS if each[0] in block_claims.TABLES and each[1] != "muon"]
)
def test_rows_imply_what_papers_claim_of_their_block(name: str, optimizer: Column, matrices: int, gate: str) -> None:
    options = Options(expert_matrices=matrices, gate=gate)  # type: ignore[arg-type]
    path = mlp_path(f"regime-{(parameterization(name).table.regime or 'I').lower()}", None)
    network = mlp_network(matrices=matrices, residual=False, depth=1)
    facts = path_facts(path[0], path, [float(shape.width) for shape in path], network=network, gate=gate)
    compared = 0
    for choice in variants(name, without=("eps", "router_eps_exponent")):  # claims are those under the paper's eps
        claimed = block_claims.predictions(choice, optimizer, path, block_claims.block_of(options))
        derived = []
        for each in derive(choice, optimizer, facts):
            quantity, role = NAMES.get((each.quantity, each.role), (each.quantity, each.role))
            derived.append(replace(each, quantity=quantity, role=role))
        found = same(derived, claimed, choice.label())
        assert found >= 5 or not claimed, choice.label()
        compared += found
    has_claims = (matrices == 2 and gate == "sigmoid") or (matrices == 1 and block_claims.TABLES[name].one_matrix)
    assert bool(compared) == bool(has_claims)


@pytest.mark.parametrize("readout", ["forward", "init_lr"])
@pytest.mark.parametrize("name", [name for name in STABLE if "adam" in PARAMETERIZATIONS.get(name).rows])
def test_eps_scales_as_the_gradients_that_are_claimed(name: str, readout: str) -> None:
    """Adam is faithful if eps scales as the gradient does (MSSP mu-3): along the table's own axes, where claimed."""
    found, table = parameterization(name, {"readout": readout}), PARAMETERIZATIONS.get(name)
    of_role = {claimed.role: claimed for claimed in claims_of(found, "adam") if claimed.quantity == "gradient"}
    along = [table.regime] if table.regime else [axis for axis in MOVES if table.covers(axis, "adam")]
    compared = 0
    for target in (replace(BASE, **MOVES[axis]) for axis in (*along, "depth") if axis in MOVES):
        at = ratios(BASE, target)
        if not table.covers("depth", "adam") and at["depth"] > 1:
            continue
        for row in found.rows("adam"):
            claim = of_role.get(row.role)
            if claim is None or claim.size is None or any(at[ratio] != 1 for ratio in claim.still):
                continue
            assert claim.size(at) == pytest.approx(row.eps(at)), f"{row.role} at {target.label()}"
            compared += 1
    assert compared >= 15
