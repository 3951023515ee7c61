"""A record of a benchmark, made up."""

from __future__ import annotations

from hpxfer.plan.speeds import Record, Row

RECORD = Record(
    name="speeds",
    device="cpu",
    date="2026-11-21",
    command="hpxfer bench --device cpu",
    machine={"cpu": "Chip", "cores": 2, "threads": 1},
    versions={"torch": "2.13.0"},
    rows=(Row(key="a", what="an a", value=1.5, unit="x", note="why", numbers={"b_ms": 2.0}),),
)
