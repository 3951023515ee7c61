"""The registry of loggers: what a sweep may name, and what is said before training."""

from __future__ import annotations

import sys

import pytest
from recorded_logger import Recorder
from sweep_text import edited

from hpxfer.errors import HpxferError
from hpxfer.loggers.kinds import LOGGERS, logger_kinds
from hpxfer.spec import parse_sweep

MODULES = {"tensorboard": "tensorboard.compat.proto.event_pb2", "wandb": "wandb", "mlflow": "mlflow"}


def test_every_logger_of_hpxfer_has_an_extra_of_its_name() -> None:
    assert set(LOGGERS.names()) == set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_a_logger_that_is_not_installed_says_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    message = (
        rf"resources\.loggers: {name} must be installed where the run starts, got: .*`pip install 'hpxfer\[{name}\]'`"
    )
    with pytest.raises(HpxferError, match=message):
        logger_kinds([name])


def test_a_logger_that_is_named_twice_is_made_once() -> None:
    with LOGGERS.registered(Recorder().kind()) as kind:
        assert logger_kinds(["mine", "mine"]) == (kind,)
    assert logger_kinds(()) == ()


def test_a_sweep_may_name_registered_loggers_only() -> None:
    text = edited(("seeds: 2", "seeds: 2\nresources: {loggers: [tensorbord]}"))
    with pytest.raises(HpxferError, match=r"resources\.loggers\[0\]: unknown logger 'tensorbord'; .*tensorboard"):
        parse_sweep(text)
    with LOGGERS.registered(Recorder().kind()):
        assert parse_sweep(text.replace("tensorbord", "mine, wandb")).resources.loggers == ("mine", "wandb")
