"""The store: a folder of Parquet files and the sweep as run. The only truth about what has been trained."""

from hpxfer.store.location import ResultsLocation, location_at
from hpxfer.store.losses import ERROR_COLUMNS, LOSS_COLUMNS, LOSS_NUMBERS, LOSSES, loss_row
from hpxfer.store.parquet import list_parts
from hpxfer.store.schema import CURVES, SHAPE_COLUMNS, TRIALS, shape_of_row
from hpxfer.store.store import Store
from hpxfer.store.sweep_file import SWEEP_FILE, damage, load_stored, require_whole, stored_sweep
from hpxfer.store.trainer_checks import Outcome, Status, TrainerChecks, checks_text, read_checks, write_checks
