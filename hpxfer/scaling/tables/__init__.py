"""The registry: every parameterization by name."""

from hpxfer.scaling.table import Table
from hpxfer.scaling.tables.completep import COMPLETEP
from hpxfer.scaling.tables.completep_moe import COMPLETEP_MOE
from hpxfer.scaling.tables.sp import SP

TABLES: dict[str, Table] = {table.name: table for table in (SP, COMPLETEP, COMPLETEP_MOE)}

__all__ = ["TABLES"]
