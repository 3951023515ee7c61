"""A sweep beside its limits: do its networks approach them, and which width is large enough?

Here alone the room knows of sweeps. What a limit is solved from is read off the stored trials, by their numbers.
"""

from hpxfer.limit.against.compare import SEEDS, TOLERANCE, against
from hpxfer.limit.against.of_trials import network_of
from hpxfer.limit.against.report import Against, Comparisons

__all__ = ["SEEDS", "TOLERANCE", "Against", "Comparisons", "against", "network_of"]
