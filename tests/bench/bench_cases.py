"""A case small enough to measure in a test."""

from __future__ import annotations

from hpxfer.bench.cases import Case

TINY = Case(width=16, depth=2, head_dim=8, vocab_size=48, context=16, batch_tokens=64, steps=6)
