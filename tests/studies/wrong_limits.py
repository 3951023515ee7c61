"""Wrong tables that the losses of `hpxfer check` should tell from the limit: `python tests/studies/wrong_limits.py`.

It prints the z of every swap of the initialization of muP and MSSP, those of the right tables and, with `--factors`, of
tables with a single factor of one role that is wrong by the root of the width.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

from hpxfer.coordinates.limit_answer import LimitAnswer
from hpxfer.coordinates.mlp import Options, approach
from hpxfer.scaling import Row, Table, register_parameterization
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.monomial import ZERO, width
from hpxfer.scaling.table import Conventions
from hpxfer.scaling.tables import PARAMETERIZATIONS

RIGHT = ("mup-i", "mssp-i", "mup-ii", "mssp-ii", "mup-iii", "mssp-iii")
SWAPS = (("mssp-ii", "mup-ii"), ("mup-ii", "mssp-ii"), ("mssp-iii", "mup-iii"), ("mup-iii", "mssp-iii"))
READOUTS = ("random", "zero")
WITH_FACTORS = ("mup-i", "mup-ii", "mssp-ii", "mup-iii", "mssp-iii")  # mssp-i has no router std, and is mup-i otherwise
ROLES = ("embedding", "router", "expert_in", "expert_out", "readout")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--factors", action="store_true", help="check the wrong factors too, which takes 15 minutes")
    asked = parser.parse_args()
    for readout in READOUTS:
        for name in RIGHT:
            tell(f"{name}, readout {readout}", answer(PARAMETERIZATIONS.get(name), readout))
        for claim, rows in SWAPS:
            theirs = PARAMETERIZATIONS.get(rows)
            swapped = replace(PARAMETERIZATIONS.get(claim), rows=theirs.rows, tied_experts=theirs.tied_experts)
            tell(f"claims {claim}, rows of {rows}, readout {readout}", answer(swapped, readout))
    if asked.factors:
        found = [tell(what, answer(table, "random")) for what, table in wrong_factors()]
        print(f"{sum(each.missed for each in found)} of {len(found)} wrong factors are found")  # noqa: T201


def wrong_factors() -> Iterator[tuple[str, Table]]:
    """Yield tables with one factor that is wrong by the root of the width."""
    for name in WITH_FACTORS:
        base = PARAMETERIZATIONS.get(name)
        for row in parameterization(name).rows("sgd"):
            for factor in ("lr", "init_std"):
                if row.role not in ROLES or getattr(row, factor) == ZERO:
                    continue
                for power in (-0.5, 0.5):
                    yield f"{name}: {row.role} {factor} * width^{power}", with_factor(base, row.role, factor, power)


def with_factor(base: Table, role: str, factor: str, power: float) -> Table:
    def rows(conventions: Conventions) -> tuple[Row, ...]:
        return tuple(
            replace(row, **{factor: getattr(row, factor) * width**power}) if row.role == role else row  # type: ignore[arg-type]
            for row in base.rows["sgd"](conventions)
        )

    return replace(base, rows={"sgd": rows})


def answer(table: Table, readout: str) -> LimitAnswer:
    """Return whether the losses under a table approach the limit that it claims."""
    axis = f"regime-{(table.regime or 'I').lower()}"
    register_parameterization(replace(table, name="wrong-limit"))
    try:
        return approach(parameterization("wrong-limit", {"readout_init": readout}), "sgd", axis, Options())
    finally:
        PARAMETERIZATIONS.remove("wrong-limit")


def tell(what: str, found: LimitAnswer) -> LimitAnswer:
    z = "diverged" if found.compared is None or found.compared.diverged else f"z = {found.compared.z:+.1f}"
    print(f"{what}: {found.verdict}, {z}", flush=True)  # noqa: T201
    return found


if __name__ == "__main__":
    main()
