"""Plan: what a sweep will do and what it will cost, before anything runs."""

from hpxfer.plan.cautions import CROSSING, require_fit
from hpxfer.plan.footprint import CPU_ALLOCATOR, FLOAT_BYTES, stack_bytes
from hpxfer.plan.hardware import (
    SPEEDS,
    Hardware,
    Kind,
    Record,
    Row,
    append,
    file_of,
    filled,
    hardware_named,
    latest,
    this_machine,
)
from hpxfer.plan.make import grid_counts, make_plan, search_counts
from hpxfer.plan.outlook import outlook
from hpxfer.plan.packing import GPU_SHARE, Device, Measured, Packer, gpu_share, memory_fraction, nearest_first
from hpxfer.plan.plan import Plan, Precision
from hpxfer.plan.text import plan_text
