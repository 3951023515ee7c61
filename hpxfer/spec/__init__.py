"""Sweep files: what they may say, and how they are read, checked and written."""

from hpxfer.spec.axes import Axis, AxisPoint, axes_of
from hpxfer.spec.load import dump_sweep, load_sweep, parse_sweep
from hpxfer.spec.sweep import SweepSpec

__all__ = ["Axis", "AxisPoint", "SweepSpec", "axes_of", "dump_sweep", "load_sweep", "parse_sweep"]
