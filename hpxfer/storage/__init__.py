"""Storage: a sweep's results folder, wherever it lies. A folder is used in place; a URI through a mirror."""

from hpxfer.storage.place import Place, open_place, place_at, results_here

__all__ = ["Place", "open_place", "place_at", "results_here"]
