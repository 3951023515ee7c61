"""The registry of parameterizations. To add one, write a module with its table and add one line here.

`own:NAME` is an arm of a user's own trainer, which decides by itself how to scale. Its table has no rows.
"""

from functools import lru_cache

from hpxfer.errors import HpxferError
from hpxfer.registry import Registry
from hpxfer.scaling.table import AXES, Table

PARAMETERIZATIONS: Registry[Table] = Registry(
    "parameterization",
    {
        "sp": "hpxfer.scaling.tables.sp:SP",
        "ntp": "hpxfer.scaling.tables.ntp:NTP",
        "mup": "hpxfer.scaling.tables.mup:MUP",
        "completep": "hpxfer.scaling.tables.completep:COMPLETEP",
        "completep-moe": "hpxfer.scaling.tables.completep_moe:COMPLETEP_MOE",
        "complete-mue": "hpxfer.scaling.tables.complete_mue:COMPLETE_MUE",
        "mup-moe": "hpxfer.scaling.tables.mup_moe:MUP_MOE",
        "mup-i": "hpxfer.scaling.tables.mssp:MUP_I",
        "mup-ii": "hpxfer.scaling.tables.mssp:MUP_II",
        "mup-iii": "hpxfer.scaling.tables.mssp:MUP_III",
        "mssp-i": "hpxfer.scaling.tables.mssp:MSSP_I",
        "mssp-ii": "hpxfer.scaling.tables.mssp:MSSP_II",
        "mssp-iii": "hpxfer.scaling.tables.mssp:MSSP_III",
    },
)


OWN = "own:"  # how the name of a user's own arm starts


def is_known(name: str) -> bool:
    """Return whether a table of this name is there."""
    return name.startswith(OWN) or name in PARAMETERIZATIONS


def table_of(name: str) -> Table:
    """Return the table of this name. Raise HpxferError, which names the nearest, if there is none."""
    return _own_table(name) if name.startswith(OWN) else PARAMETERIZATIONS.get(name)


@lru_cache(maxsize=256)
def _own_table(name: str) -> Table:
    return Table(
        name=name,
        source="the user's own trainer",
        axes=AXES,
        rows={"adam": lambda conventions: (), "sgd": lambda conventions: ()},
        doc="An arm of a user's own trainer, which decides by itself how to scale.",
    )


def register_parameterization(table: Table) -> Table:
    """Register a table of your own under its name, and return it.

    Raise HpxferError if the name is taken, or if hpxfer cannot evaluate the table. The suite in
    `hpxfer.testing.parameterization` holds a table to more rules.
    """
    table.require_legal()
    if table.limit is not None:
        _require_limit(table, table.limit)
    return PARAMETERIZATIONS.register(table)


def _require_limit(table: Table, name: str) -> None:
    """Raise HpxferError unless the table of this name has the limit itself, along the regime of `table`."""
    where, claimed = f"parameterization {table.name}: limit", PARAMETERIZATIONS.get(name)
    if claimed.limit != name:
        fix = "leave it out" if claimed.limit is None else f"take {claimed.limit}, or leave it out"
        raise HpxferError(f"{where}: must be a table of MSSP, got {name}; {fix}")
    if table.regime not in (None, claimed.regime):
        raise HpxferError(f"{where}: must be along the table's own regime {table.regime}, got {name}; leave it out")


__all__ = ["OWN", "PARAMETERIZATIONS", "is_known", "register_parameterization", "table_of"]
