from __future__ import annotations

import pytest

from hpxfer.bench import whole_machine
from hpxfer.bench.goals import GOALS
from hpxfer.bench.parts import rows_of


def test_every_core_is_timed_against_the_faster_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_machine, "num_cpus", lambda: 1)  # plain threads of one core wait for nobody
    monkeypatch.setattr(whole_machine, "_REPEATS", {32: 1})
    (row,) = rows_of(whole_machine.parts(widths=(32,), rounds=1))
    assert row.key == "machine-32"
    assert row.what == GOALS["machine-32"].what
    assert row.numbers["workers"] == 1
    faster = min(row.numbers["plain_ms"], row.numbers["plain_threads_ms"])
    assert row.value == pytest.approx(faster / row.numbers["stacked_ms"])
