"""The store: a folder of Parquet files and the sweep as run. The only truth about what has been trained."""

from hpxfer.store.schema import CURVES, SCHEMA_VERSION, SHAPE_COLUMNS, TRIALS
from hpxfer.store.store import Store
from hpxfer.store.sweep_file import SWEEP_FILE

__all__ = ["CURVES", "SCHEMA_VERSION", "SHAPE_COLUMNS", "SWEEP_FILE", "TRIALS", "Store"]
