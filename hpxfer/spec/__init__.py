"""Sweep files: what they may say, and how they are read, checked and written."""

from hpxfer.spec.axes import Path, Point, paths
from hpxfer.spec.load import dump_sweep, load_sweep, parse_sweep
from hpxfer.spec.sweep import SweepSpec

__all__ = ["Path", "Point", "SweepSpec", "dump_sweep", "load_sweep", "parse_sweep", "paths"]
