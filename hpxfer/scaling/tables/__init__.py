"""The registry: every parameterization by name."""

from hpxfer.errors import HpxferError
from hpxfer.scaling.table import Table
from hpxfer.scaling.tables.complete_mue import COMPLETE_MUE
from hpxfer.scaling.tables.completep import COMPLETEP
from hpxfer.scaling.tables.completep_moe import COMPLETEP_MOE
from hpxfer.scaling.tables.mssp import REGIME_TABLES
from hpxfer.scaling.tables.mup import MUP
from hpxfer.scaling.tables.mup_moe import MUP_MOE
from hpxfer.scaling.tables.ntp import NTP
from hpxfer.scaling.tables.sp import SP

TABLES: dict[str, Table] = {
    table.name: table for table in (SP, NTP, MUP, COMPLETEP, COMPLETEP_MOE, COMPLETE_MUE, MUP_MOE, *REGIME_TABLES)
}


def register(table: Table) -> None:
    """Add a table of your own under its name; `hpxfer.testing.parameterization` holds it to the rules of a table."""
    if table.name in TABLES:
        raise HpxferError(f"parameterization {table.name!r} is there already; choose another name")
    TABLES[table.name] = table


__all__ = ["TABLES", "register"]
