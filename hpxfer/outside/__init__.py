"""Runs that were trained elsewhere: their table is read, checked and judged as a sweep is."""

from hpxfer.outside.in_python import judge
from hpxfer.outside.judging import judge as judge_by_options
from hpxfer.outside.trackers.table import Choices
