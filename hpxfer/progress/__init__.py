"""Progress: how far a run is, as counts and status, on the terminal, in a file, and from another shell."""

from hpxfer.progress.counts import RunCounts, writing
from hpxfer.progress.live import LiveDisplay, LiveProgress, progress_table
from hpxfer.progress.status import FILE
from hpxfer.progress.watch import view_now, views
