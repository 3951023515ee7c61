"""What `hpxfer submit` sends of its options. Without Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sweep_text import SWEEP

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.jobs.commands import offer, submit
from hpxfer.jobs.request import Answer, Request
from hpxfer.trial import TRAINER_VERSION


class _Answers:
    """A cluster that accepts every sweep, and keeps what it was asked."""

    address = "http://h"

    def __init__(self) -> None:
        self.asked: list[tuple[Request, str]] = []
        self.submitted: list[tuple[Request, str]] = []

    def ask(self, request: Request, sweep: str) -> Answer:
        self.asked.append((request, sweep))
        versions = {"hpxfer": hpxfer.__version__, "trainer": TRAINER_VERSION}
        said = {"versions": versions, "host": "head", "root": request.root, "plan": {}, "text": "", "warnings": []}
        return Answer(data=said, files={})

    def submit(self, request: Request, sweep: str, **_: Any) -> None:
        self.submitted.append((request, sweep))


def test_what_is_reused_and_how_a_trial_is_stopped_travel_with_the_sweep(tmp_path: Path) -> None:
    sweep, cluster = tmp_path / "a.yaml", _Answers()
    sweep.write_text(f"{SWEEP}early_stopping: {{asha: {{grace_steps: 10}}}}\n", encoding="utf-8")
    for chosen, asha in ((None, True), ("none", False)):
        offered = offer(cluster, sweep, None, reuse=["~/b", "s3://bucket/c"], early_stopping=chosen)  # type: ignore[arg-type]
        submit(cluster, offered)  # type: ignore[arg-type]
        for request, text in (cluster.asked[-1], cluster.submitted[-1]):
            assert request.reuse == ("~/b", "s3://bucket/c")
            assert ("asha" in text) is asha
    with pytest.raises(HpxferError, match="--reuse must be a URI or an absolute path on the cluster, got 'results/a'"):
        offer(cluster, sweep, None, reuse=["results/a"])  # type: ignore[arg-type]
    with pytest.raises(HpxferError, match="--early-stopping must be none, got 'all'"):
        offer(cluster, sweep, None, early_stopping="all")  # type: ignore[arg-type]
    assert len(cluster.asked) == 2
