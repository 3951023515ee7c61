"""Coverage: every way in which a target can leave what a source covers, and the ways in which it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpxfer.scaling.coverage import MOVES, ModelFacts, control_notes, coverage_notes, coverage_warnings, gate_warnings
from hpxfer.scaling.evaluate import BaseInit, parameterization, resolve
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import AXES, Column
from hpxfer.scaling.tables import PARAMETERIZATIONS

RUN = {"batch_tokens": 64, "steps": 100}
BASE = Shape(width=32, depth=2, num_experts=4, num_active=1, expert_width=32, head_dim=32, **RUN)
DENSE = Shape(width=32, depth=2, head_dim=32, dense_width=128, **RUN)
HYBRID = replace(BASE, dense_width=128)
EVERYTHING = ("sp", "complete-mue")
REGIMES = ("mup-i", "mup-ii", "mup-iii", "mssp-i", "mssp-ii", "mssp-iii")


def plain(name: str) -> Shape:
    """Return a base that the table has rules for."""
    return DENSE if name == "completep" else BASE


def warnings(
    name: str,
    base: Shape = BASE,
    *,
    facts: ModelFacts | None = None,
    optimizer: Column | None = None,
    conventions: dict[str, float | str] | None = None,
    **dims: int,
) -> list[str]:
    column = optimizer or next(iter(PARAMETERIZATIONS.get(name).rows))
    return coverage_warnings(parameterization(name, conventions), base, replace(base, **dims), facts, column)


@pytest.mark.parametrize("name", list(PARAMETERIZATIONS))
@pytest.mark.parametrize("base", [BASE, DENSE, HYBRID])
def test_the_base_itself_is_covered(name: str, base: Shape) -> None:
    gate = "normalized_sigmoid" if PARAMETERIZATIONS.get(name).normalized_gate else "sigmoid"
    got = warnings(name, base, facts=ModelFacts(gate=gate, tied_embeddings=False))
    if name == "completep" and base.num_experts:
        assert got == [f"completep has no rule for router, expert_in, expert_out, which a model {base.label()} has"]
    else:
        assert got == []


@pytest.mark.parametrize("name", list(PARAMETERIZATIONS))
def test_shared_experts_without_a_rule(name: str) -> None:
    base = replace(BASE, num_shared=1, shared_width=32)
    missing = f"{name} has no rule for shared_in, shared_out, which a model {base.label()} has"
    assert (missing in warnings(name, base)) == (name in ("completep-moe", *REGIMES))


# What moves -> how it is moved, and the tables that cover it (at a fixed share of active experts).
WAYS: dict[str, tuple[dict[str, int], tuple[str, ...]]] = {
    "width": (
        {"width": 64, "expert_width": 64},
        (*EVERYTHING, "ntp", "mup", "completep-moe", "mup-moe", "mup-i", "mssp-i"),
    ),
    "depth": ({"depth": 8}, (*EVERYTHING, "completep-moe", *REGIMES)),
    "experts": ({"num_experts": 16, "num_active": 4}, (*EVERYTHING, "completep-moe")),
    "capacity": ({"num_experts": 16}, EVERYTHING),
    "active": ({"num_active": 2}, EVERYTHING),
    "granularity": ({"num_experts": 16, "num_active": 4, "expert_width": 8}, (*EVERYTHING, "completep-moe")),
    "expert_ratio": ({"expert_width": 128}, (*EVERYTHING, "mup", "completep-moe")),
    "shared": ({"num_shared": 1, "shared_width": 32}, EVERYTHING),
    "groups": ({"num_experts": 16, "num_active": 4, "num_groups": 4}, EVERYTHING),
    "batch": ({"batch_tokens": 256, "steps": 25}, EVERYTHING),
    "duration": ({"steps": 400}, EVERYTHING),
    "regime II": (
        {"width": 64, "num_experts": 8, "num_active": 2, "expert_width": 32},
        (*EVERYTHING, "completep-moe", "mup-ii", "mssp-ii"),
    ),
    "regime III": (
        {"width": 64, "num_experts": 8, "num_active": 2, "expert_width": 64},
        (*EVERYTHING, "completep-moe", "mup-iii", "mssp-iii"),
    ),
}


@pytest.mark.parametrize("name", list(PARAMETERIZATIONS))
@pytest.mark.parametrize("way", list(WAYS))
def test_what_each_table_covers(name: str, way: str) -> None:
    dims, covered = WAYS[way]
    assert (warnings(name, **dims) == []) == (name in covered)


@pytest.mark.parametrize(
    ("name", "covered"),
    [
        *((name, True) for name in (*EVERYTHING, "mup")),
        *((name, False) for name in ("completep", "completep-moe", "ntp")),
    ],
)
def test_the_ratio_of_a_dense_ffn(name: str, covered: bool) -> None:
    assert (warnings(name, DENSE, dense_width=256) == []) == covered
    assert (warnings(name, HYBRID, dense_width=256) == []) == covered


def test_completep_covers_dense_models_along_width_and_depth_alone() -> None:
    assert warnings("completep", DENSE, width=64, dense_width=256) == warnings("completep", DENSE, depth=8) == []
    assert warnings("completep", DENSE, dense_width=256) == [
        "completep holds dense_ratio fixed: it goes from 4 to 8; the source keeps the FFN's ratio to the width"
    ]


@pytest.mark.parametrize(
    ("name", "dims", "expected"),
    [
        (
            "completep-moe",
            {"num_experts": 8},
            [
                "completep-moe holds kappa fixed: it goes from 0.25 to 0.125; with another share of active experts "
                "transfer is not expected (2601.20205 Fig. 10)"
            ],
        ),
        (
            "mup-moe",
            {"num_experts": 8, "num_active": 2},
            [
                "mup-moe holds num_experts fixed: it goes from 4 to 8; the source's limit holds the number of experts "
                "and does not commute with a growing one",
                "mup-moe holds num_active fixed: it goes from 1 to 2; the source's limit holds the number of active "
                "experts",
            ],
        ),
        ("sp", {"head_dim": 16}, ["sp holds head_dim fixed: it goes from 32 to 16"]),
        (
            "mup",
            {"num_shared": 1, "shared_width": 32},
            ["mup does not cover shared: it goes from 0 to 0.5 of the active width"],
        ),
        (
            "mup",
            {"num_experts": 8, "num_active": 4, "num_groups": 2},
            [
                "mup does not cover experts: it changes by a factor of 2",
                "mup does not cover active: it changes by a factor of 4",
                "mup does not cover groups: it goes from 1 to 2",
            ],
        ),
        ("completep-moe", {"steps": 400}, ["completep-moe does not cover duration: it changes by a factor of 4"]),
    ],
)
def test_what_is_said(name: str, dims: dict[str, int], expected: list[str]) -> None:
    assert warnings(name, **dims) == expected


@pytest.mark.parametrize("family", ["mup", "mssp"])
@pytest.mark.parametrize("declared", ["i", "ii", "iii"])
@pytest.mark.parametrize("path", ["regime II", "regime III", "width"])
def test_a_wrong_regime_names_the_one_that_fits(family: str, declared: str, path: str) -> None:
    fits = {"regime II": "ii", "regime III": "iii", "width": "i"}[path]
    got = warnings(f"{family}-{declared}", **WAYS[path][0])
    if fits == declared:
        assert got == []
    else:
        (warning,) = got
        assert warning.startswith(f"{family}-{declared} is for regime {declared.upper()}, where width, ")
        assert warning.endswith(f"; it follows regime {fits.upper()}: use {family}-{fits}")


@pytest.mark.parametrize("name", ["mup-ii", "mssp-iii"])
def test_a_path_of_no_regime_says_so(name: str) -> None:
    (warning,) = warnings(name, width=64, num_experts=16, num_active=4)
    path = "width x2, expert_width x1, experts x4, active x4"
    assert warning.endswith(f" grow by one factor and the rest stays: {path}; it follows none of the regimes")


@pytest.mark.parametrize("name", ["mup-i", "mssp-ii"])
def test_depth_in_a_regime_is_for_adam(name: str) -> None:
    assert warnings(name, depth=8) == []
    assert warnings(name, depth=8, optimizer="sgd") == [
        f"{name} does not cover depth for sgd: it changes by a factor of 4"
    ]


# (table, conventions) with a router that starts at zero.
ZERO_ROUTERS: list[tuple[str, dict[str, float | str]]] = [
    ("mssp-i", {}),
    ("mup-moe", {"router_init": "zero"}),
    ("completep-moe", {"router_init_exponent": "inf"}),
]
SOFT = replace(BASE, num_active=4)


@pytest.mark.parametrize(("name", "conventions"), ZERO_ROUTERS)
@pytest.mark.parametrize("gate", ["softmax", "normalized_sigmoid"])
def test_a_zero_router_of_all_experts_stays_uniform(name: str, conventions: dict[str, float | str], gate: str) -> None:
    def of(base: Shape, gate: str | None, **more: float | str) -> list[str]:
        return warnings(name, base, facts=ModelFacts(gate=gate), conventions={**conventions, **more})

    (warning,) = of(SOFT, gate)
    assert "starts from a zero router, all 4 experts are active and nothing breaks their symmetry" in warning
    assert f"with the gate {gate} the router stays uniform" in warning
    assert "with a softmax gate the router stays uniform" in of(SOFT, None)[0]
    assert of(SOFT, "sigmoid") == of(BASE, gate) == []  # a gate of its own, or ties that the choice of experts breaks
    if "router_bias_std" in PARAMETERIZATIONS.get(name).conventions:
        assert "; set the convention router_bias_std, or activate fewer experts" in warning
        assert of(SOFT, gate, router_bias_std=1.0) == []
    else:
        assert warning.endswith("; activate fewer experts than there are")


@pytest.mark.parametrize(("name", "conventions"), ZERO_ROUTERS)
def test_a_zero_router_with_ties_by_index_is_warned_of(name: str, conventions: dict[str, float | str]) -> None:
    def of(ties: str | None, shape: Shape = BASE, **more: float | str) -> tuple[list[str], list[str]]:
        """Return warnings and notes."""
        choice, facts = parameterization(name, {**conventions, **more}), ModelFacts(gate="sigmoid", ties=ties)
        return coverage_warnings(choice, shape, shape, facts), coverage_notes(choice, shape, shape, facts)

    (warning,), notes = of("index")
    assert warning == (
        f"{parameterization(name, conventions).label()} starts from a zero router: where ties go to the lowest index, "
        f"all tokens go to the same {BASE.num_active} of {BASE.num_experts} experts at first; choose among equal "
        "experts at random, as model.ties: random does in a sweep"
    )
    assert notes == []
    assert of(None) == ([], [warning])  # how the reader's model chooses is not known
    assert of("random") == of("fixed_bias") == of("index", SOFT) == ([], [])
    if "router_bias_std" in dict(parameterization(name).conventions):
        assert of("index", router_bias_std=1.0) == of(None, router_bias_std=1.0) == ([], [])


@pytest.mark.parametrize(
    ("name", "covered"),
    [("complete-mue", True), ("sp", True), ("completep-moe", False), ("mup-moe", False), ("mssp-ii", False)],
)
def test_a_base_without_experts_is_said(name: str, covered: bool) -> None:
    said = [text for text in coverage_warnings(parameterization(name), DENSE, BASE) if "has no experts" in text]
    assert len(said) == (not covered)
    if said:
        assert said[0] == (
            f"the base has no experts: {name}'s source does not lead from a dense FFN to experts; its factors take the "
            "FFN of width 128 for a single expert that is always active, and what was tuned says nothing of routers "
            "and their balance; tune a base with experts, or take a table whose source leads there"
        )
    for base, target in ((BASE, BASE), (BASE, DENSE), (DENSE, DENSE)):
        found = coverage_warnings(parameterization(name), base, target)
        assert not [text for text in found if "has no experts" in text]


def test_the_control_says_that_it_keeps_the_base_s_divisor() -> None:
    more = replace(BASE, num_experts=32, num_active=4 * BASE.num_active)

    def of(name: str, gate: str | None, base: Shape = BASE, target: Shape = more) -> list[str]:
        return control_notes(parameterization(name), base, target, ModelFacts(gate=gate))

    (note,) = of("sp", "sigmoid")
    assert note == (
        f"sp keeps the base's divisor of the experts' sum: it divides the sum of {more.num_active} active experts by "
        f"{BASE.num_active}, and the gate sigmoid does not sum to one, so that the sum has 4 times the base's weight; "
        "part of how sp moves here comes from that, and not from its init and LR"
    )
    # By what it says: the factor of the output in the model, over what an average has.
    factor = resolve(parameterization("sp"), BASE, more, "adam", HPs(lr=0.01), BaseInit())["expert_out"].forward
    assert factor * more.num_active == 4
    averaged = resolve(parameterization("completep-moe"), BASE, more, "adam", HPs(lr=0.01), BaseInit())["expert_out"]
    assert averaged.forward * more.num_active == 1
    assert of("completep-moe", "sigmoid") == []
    assert of("sp", "normalized_sigmoid") == of("sp", "softmax") == of("sp", None) == []
    assert of("sp", "sigmoid", target=replace(BASE, width=64)) == of("sp", "sigmoid", target=DENSE) == []
    assert "of 2 active experts by 1" in of("sp", "sigmoid", DENSE, replace(BASE, num_active=2))[0]


def test_a_random_router_is_fine_there_and_a_dense_model_has_none() -> None:
    for name, base in (("mup-moe", SOFT), ("mup-i", SOFT), ("completep-moe", SOFT), ("mssp-i", DENSE)):
        assert warnings(name, base, facts=ModelFacts(gate="softmax")) == []


@pytest.mark.parametrize("name", list(PARAMETERIZATIONS))
def test_a_gate_of_another_kind_than_the_source_s(name: str) -> None:
    assert PARAMETERIZATIONS.get(name).normalized_gate == (name == "complete-mue")
    found = warnings(name, plain(name), facts=ModelFacts(gate="sigmoid"))
    if name == "complete-mue":
        (warning,) = found
        assert warning.startswith("complete-mue's gate sums to one over the active experts, and sigmoid does not")
        assert warnings(name, DENSE, facts=ModelFacts(gate="sigmoid")) == []
    else:
        assert found == []
    for gate in ("normalized_sigmoid", "normalized_softmax"):
        assert warnings(name, plain(name), facts=ModelFacts(gate=gate)) == []
    if name == "complete-mue":  # a softmax over all experts sums to one over the active ones if all are
        soft = ModelFacts(gate="softmax")
        (warning,) = warnings(name, BASE, facts=soft)
        assert warning.startswith("complete-mue's gate sums to one over the active experts, and softmax does over all")
        assert warnings(name, SOFT, facts=soft) == warnings(name, DENSE, facts=soft) == []


@pytest.mark.parametrize("gate", ["normalized_sigmoid", "normalized_softmax"])
def test_a_normalized_gate_of_one_active_expert_is_constant(gate: str) -> None:
    assert gate_warnings(BASE, gate) == [
        f"gate {gate} with num_active 1 (w32 d2 E4A1 h32): the gate is constant, the router does not learn"
    ]
    assert gate_warnings(SOFT, gate) == gate_warnings(BASE, "softmax") == gate_warnings(BASE, None) == []


TIED, UNTIED = ModelFacts(tied_embeddings=True), ModelFacts(tied_embeddings=False)


@pytest.mark.parametrize(
    "name", [name for name in PARAMETERIZATIONS if "embeddings" in PARAMETERIZATIONS.get(name).conventions]
)
def test_tables_and_models_tied_and_untied(name: str) -> None:
    def of(facts: ModelFacts, **conventions: str) -> list[str]:
        return warnings(name, plain(name), facts=facts, conventions={"readout": "forward", **conventions})

    (warning,) = of(UNTIED, embeddings="tied")
    assert "is for tied embeddings, and this model has a readout of its own" in warning
    (warning,) = of(TIED, readout="init_lr")
    assert "this model's readout is tied to the embedding" in warning
    assert warning.endswith("; set readout: forward")
    assert of(TIED, embeddings="tied") == of(TIED) == of(UNTIED) == of(UNTIED, readout="init_lr") == []
    assert of(ModelFacts(), embeddings="tied") == []  # nobody said


@pytest.mark.parametrize(
    "name", [name for name in PARAMETERIZATIONS if "readout_init" in PARAMETERIZATIONS.get(name).conventions]
)
def test_a_zero_readout_of_a_tied_model(name: str) -> None:
    def of(facts: ModelFacts) -> list[str]:
        return warnings(name, facts=facts, conventions={"readout": "forward", "readout_init": "zero"})

    (warning,) = of(TIED)
    assert warning.endswith("which starts at random; set readout_init: random")
    assert of(UNTIED) == []


def test_a_dense_base_and_its_targets() -> None:
    for choice in map(parameterization, ("complete-mue", "sp")):
        for target in (BASE, HYBRID, replace(BASE, num_shared=1, shared_width=32), replace(HYBRID, dense_width=64)):
            assert coverage_warnings(choice, DENSE, target) == []


def test_a_dense_ffn_that_one_side_lacks() -> None:
    mue = parameterization("complete-mue")
    for base, target, has, lacks in ((BASE, DENSE, "target", "base"), (HYBRID, BASE, "base", "target")):
        warning = f"the {has} has dense FFNs and the {lacks} has none to compare them with"
        assert coverage_warnings(mue, base, target) == [warning]


def test_every_axis_of_a_table_is_one_that_moves_something() -> None:
    known = {axis for axes in MOVES.values() for axis in axes}
    assert known == set(AXES)
    for table in PARAMETERIZATIONS.rows():
        assert {*table.axes, *table.adam_axes} <= known, table.name
