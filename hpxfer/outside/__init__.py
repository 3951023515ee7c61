"""Runs that were trained elsewhere: their table is read, checked and judged as a sweep is."""

from hpxfer.outside.judging import judge
from hpxfer.outside.trackers.table import Choices
