"""The offline tuner, with a clock that the test controls."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from triton_cases import DEVICE

from hpxfer.kernels import tune
from hpxfer.kernels.configs import Product, table

TINY = replace(table()["interpreter"][1], max_rows=4, max_features=8)


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert tune.main([]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_table_it_writes_is_read_back() -> None:
    assert table(tune.text_of(table(), "a note")) == table()


def test_the_fastest_stays(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = Product(n=64, k=32, warps=8, stages=4)
    monkeypatch.setattr(tune, "step", lambda config, given: lambda: config)

    def clock(run: object) -> float:
        config = run()  # type: ignore[operator]
        return sum(getattr(config, name) != wanted for name in ("product", "up", "hidden", "gated")) + (config.m != 32)

    found = tune.best(TINY, DEVICE, clock)
    assert found == replace(TINY, m=32, product=wanted, up=wanted, hidden=wanted, gated=wanted)
    assert "gradient" in capsys.readouterr().out


def test_a_step_runs_the_layer() -> None:
    grads = tune.step(TINY, tune.sample(TINY, gated=True, device=DEVICE))()
    assert torch.isfinite(grads.x).all()  # type: ignore[attr-defined]
