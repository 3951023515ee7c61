"""Receipts: what a training's optimizer really holds, and what such reports say of how far its results can be trusted.

`receipt` and `write_groups` run inside a training and import torch late. All checks are pure functions of plain data.
"""

from hpxfer.receipts.checks import (
    Repeat,
    arms_agree,
    base_repeats,
    common_factor,
    forward_factors,
    groups_match,
    hp_is_wired,
    init_matches,
    same_measure,
    schedule_keeps_ratios,
    seeds_differ,
)
from hpxfer.receipts.receipt import append, changes_since, digest, measure_sites, receipt, weights_of, write_groups
from hpxfer.store import Outcome
