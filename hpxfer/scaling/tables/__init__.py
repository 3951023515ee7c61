"""The registry of parameterizations. To add one, write a module with its table and add one line here."""

from hpxfer.registry.rows import Registry
from hpxfer.scaling.table import Table

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


def register_parameterization(table: Table) -> Table:
    """Register a table of your own under its name, and return it.

    Raise HpxferError if the name is taken, or if hpxfer cannot evaluate the table. The suite in
    `hpxfer.testing.parameterization` holds a table to more rules.
    """
    table.require_legal()
    return PARAMETERIZATIONS.register(table)


__all__ = ["PARAMETERIZATIONS", "register_parameterization"]
