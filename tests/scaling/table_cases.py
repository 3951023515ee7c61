"""Random parameterizations, shapes of every layout, and ways between them, for the laws that hold for every table."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from hpxfer.scaling.evaluate import Parameterization, parameterization
from hpxfer.scaling.shape import Shape, check_shape
from hpxfer.scaling.table import Column, Convention
from hpxfer.scaling.tables import PARAMETERIZATIONS

COLUMNS: list[tuple[str, Column]] = [
    (table.name, optimizer) for table in PARAMETERIZATIONS.rows() for optimizer in table.rows
]
LAYOUTS = ("dense", "moe", "shared", "groups", "hybrid")
# Roles that start at exact zeros, and those that no weight decay touches.
ZERO_INIT = {"hidden_bias", "router_bias"}
NO_DECAY = {"position", "norm", "final_norm", "hidden_bias", "router_bias"}
# What a convention may start at an exact zero: role -> the convention and its value.
ZEROED = {
    "router": (("router_init", "zero"), ("router_init_exponent", "inf")),
    "readout": (("readout_init", "zero"),),
}
WIDTH = st.integers(1, 16).map(lambda n: 8 * n)


@st.composite
def layouts(draw: st.DrawFn, layout: str | None = None) -> Shape:
    """Return a random legal shape with its schedule; a dense or a hybrid one has a dense FFN."""
    layout = layout or draw(st.sampled_from(LAYOUTS))
    dims: dict[str, Any] = {
        "width": draw(WIDTH),
        "depth": draw(st.integers(1, 64)),
        "head_dim": 8,
        "batch_tokens": 32 * draw(st.integers(1, 64)),
        "steps": draw(st.integers(1, 10_000)),
    }
    if layout != "dense":
        groups = draw(st.integers(2, 4)) if layout == "groups" else 1
        active = groups * draw(st.integers(1, 4))
        experts = active * draw(st.integers(1, 8))
        dims |= {"num_experts": experts, "num_active": active, "expert_width": draw(WIDTH), "num_groups": groups}
    if layout in ("shared", "hybrid"):
        dims |= {"num_shared": draw(st.integers(1, 3)), "shared_width": draw(WIDTH)}
    if layout in ("dense", "hybrid"):
        dims |= {"dense_width": draw(WIDTH)}
    shape = Shape(**dims)
    assert check_shape(shape) is None
    return shape


@st.composite
def choices(draw: st.DrawFn, name: str) -> Parameterization:
    """Return the named table with random legal conventions."""
    return parameterization(name, draw(conventions(name)))


@st.composite
def conventions(draw: st.DrawFn, name: str) -> dict[str, float | str]:
    """Return a random legal value of every convention of a table; tied embeddings leave some no choice."""
    out = {key: draw(_values(convention)) for key, convention in PARAMETERIZATIONS.get(name).conventions.items()}
    if out.get("embeddings") == "tied":
        out["readout"] = "forward"
        if "readout_init" in out:
            out["readout_init"] = "random"
    return out


def zeroed(choice: Parameterization) -> set[str]:
    """Return the roles that start at zero by a convention or, in regime I of MSSP, by the table."""
    chosen = set(choice.conventions)
    out = {role for role, by in ZEROED.items() if chosen & set(by)}
    return out | ({"router"} if choice.name == "mssp-i" else set())


def _values(convention: Convention) -> st.SearchStrategy[float | str]:
    if convention.legal[0] == "between":
        _, low, high = convention.legal
        return st.floats(float(low), float(high))
    return st.sampled_from(convention.legal)
