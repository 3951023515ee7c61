"""Arms: the section `parameterizations` of a sweep file. The text below a field documents its key.

An arm is a row: a table, its conventions, and the HPs and the balance that it has otherwise than the sweep. The arms
that share a name, HPs and balance are a sweep of plain tables, whose base values they move (`sweep.parts_of`). So each
line of the grid runs through the arm's own base values, and a trial's id follows from its HPs and its balance: arms in
which both are equal share their trials.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from hpxfer.spec.fields import Number, Section, arm_name
from hpxfer.spec.model_section import Balance


def _spelled_infinity(value: Any) -> Any:
    """Spell YAML's `.inf` as conventions do."""
    if not isinstance(value, dict):
        return value
    return {key: "inf" if isinstance(entry, float) and entry == math.inf else entry for key, entry in value.items()}


def arm_label(table: str, name: str | None) -> str:
    """Return the label of an arm, e.g. `completep-moe (tuned)`. `hpxfer.host.names` reads it."""
    return table if name is None else f"{table} ({name})"


def convention_value(text: str) -> float | str:
    """Return a convention's value as it is written in one text: what looks like a number is one."""
    try:
        return float(text)
    except ValueError:
        return text


def short(value: Any) -> Any:
    """Read `sp` and `completep[depth_alpha=0.5]` as the mappings that they are short for."""
    if not isinstance(value, str):
        return value
    table, bracket, inner = value.partition("[")
    if not bracket or not inner.endswith("]"):
        return {"table": value}
    pairs = (pair.partition("=") for pair in inner[:-1].split(","))
    return {"table": table, "conventions": {key.strip(): convention_value(text.strip()) for key, _, text in pairs}}


Conventions = Annotated[dict[str, float | str], BeforeValidator(_spelled_infinity)]


class ArmHPs(Section):
    """The base values that an arm moves. What is left out is as in `hps` and `training`."""

    lr: Number | None = None
    """The learning rate."""
    adamw_lr: Number | None = None
    """Under Muon, the learning rate of what AdamW moves."""
    init_scale: Number | None = None
    """The factor of the init std of every matrix."""
    residual_scale: Number | None = None
    """The factor of every residual branch."""
    weight_decay: Number | None = None
    """The weight decay."""
    eps: Number | None = None
    """AdamW's eps."""
    beta1: Number | None = None
    """The first beta of AdamW."""
    beta2: Number | None = None
    """The second beta of AdamW."""
    momentum: Number | None = None
    """The momentum of SGD or of Muon."""
    router_bias_lr: Number | None = None
    """The rate of the rule that balances the experts through the router bias."""
    aux_weight: Number | None = None
    """The weight of the loss that balances the experts."""
    z_weight: Number | None = None
    """The weight of the router's z-loss."""
    multipliers: dict[str, Number] = Field(default_factory=dict)
    """Constant multipliers of one role. A multiplier of `hps` that is not named here stays."""

    def given(self) -> dict[str, float]:
        """Return HP -> value of those that are given."""
        scalars = {name: value for name, value in vars(self).items() if name != "multipliers" and value is not None}
        return {**scalars, **self.multipliers}


class ParameterizationSpec(Section):
    """An arm: a table, with what it has otherwise than the sweep. A bare name is short for `{table: NAME}`, and
    `completep[depth_alpha=0.5]` for a table with conventions."""

    table: str
    """The name of the table. `hpxfer explain --list` prints all names."""
    conventions: Conventions = Field(default_factory=dict)
    """Conventions that differ from the table's defaults, by key, such as `{router_init_exponent: 0.5}`."""
    name: Annotated[str, AfterValidator(arm_name)] | None = None
    """The name of an arm with `hps` or `balance` of its own. It is part of the label: `completep-moe (tuned)`. The
    control of the arm is `sp` of the same name, else `sp`."""
    hps: ArmHPs | None = None
    """The base values that differ."""
    balance: Balance | None = None
    """How the experts are balanced instead, e.g. `{bias: sign}`. It replaces `model.balance` whole. Without a loss in
    it, aux_weight is 0."""

    def given(self) -> dict[str, float]:
        """Return HP -> value of those that the arm gives."""
        return {} if self.hps is None else self.hps.given()

    @property
    def own(self) -> tuple[str | None, ArmHPs | None, Balance | None]:
        """What it has beside its table."""
        return self.name, self.hps, self.balance

    @property
    def is_plain(self) -> bool:
        """Whether it is a table and no more."""
        return self.own == (None, None, None)


Arm = Annotated[ParameterizationSpec, BeforeValidator(short, json_schema_input_type=str | ParameterizationSpec)]
