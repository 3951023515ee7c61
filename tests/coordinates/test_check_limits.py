"""How large a check may be: what would fill the memory or end tomorrow is refused before anything trains."""

from __future__ import annotations

import pytest

from hpxfer.coordinates import limits
from hpxfer.coordinates.checking import check
from hpxfer.errors import HpxferError


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"seeds": 10**9}, "--seeds: must be from 1 to 1000, got 1000000000"),
        ({"seeds": 0}, "--seeds: must be from 1 to 1000, got 0"),
        ({"steps": 10**9}, "--steps: must be from 1 to 1000000, got 1000000000"),
        ({"steps": -1}, "--steps: must be from 1 to 1000000, got -1"),
        ({"points": range(1, 3000)}, "--points: must be at most 100 values, got 2999; leave some out"),
        ({"points": (32, 64, 128, 10**6)}, "--points: w1000000 d2 E4A4 h1000000 with 6 seeds needs about "),
        ({"points": (32, 64, 128, 256), "seeds": 1000}, "--points: w128 d2 E4A4 h128 with 1000 seeds needs about "),
    ],
)
def test_what_is_refused(asked: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "host_bytes", lambda: 16 * 2**30)
    with pytest.raises(HpxferError) as caught:
        check("completep-moe", axes=["width"], **asked)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def test_the_block_has_a_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "host_bytes", lambda: 16 * 2**30)
    with pytest.raises(HpxferError, match=r"--points: w1000000 .* with 6 seeds needs about .* GiB, got 16 GiB"):
        check("mssp-i", axes=["regime-i"], architecture="mlp", points=(32, 64, 128, 10**6))


def test_nothing_is_refused_where_the_memory_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "host_bytes", lambda: None)
    report = check("completep-moe", axes=["depth"], points=(1, 2, 3, 4), seeds=1, steps=1)
    assert len(report.axes) == 1
