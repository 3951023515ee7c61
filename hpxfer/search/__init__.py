"""Search: which trials come next. A search is pure: the stored losses decide, so a run resumes by asking anew."""

from hpxfer.search.kinds import SearchKind, make_search, register_search
from hpxfer.search.protocol import Outcome, Progress, Search

__all__ = ["Outcome", "Progress", "Search", "SearchKind", "make_search", "register_search"]
