"""Search: which trials come next. Strategies are pure: what the store holds decides, so a run is resumed by asking."""

from hpxfer.search.grid import GridSearch
from hpxfer.search.make import make_search
from hpxfer.search.protocol import Outcome, Progress, Search

__all__ = ["GridSearch", "Outcome", "Progress", "Search", "make_search"]
