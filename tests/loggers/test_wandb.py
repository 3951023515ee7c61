"""Weights & Biases without a network: offline runs, and what is asked of the user before training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import wandb_file
from fixture_types import Folders, Patch

from hpxfer.errors import HpxferError
from hpxfer.loggers.kinds import LOGGERS, LoggedTrial, LoggerKind, Place
from hpxfer.testing.loggers import FINISHED, INTERRUPTED, LoggerSuite, trial_named

wandb = pytest.importorskip("wandb", reason="the extra wandb is not installed")


@pytest.fixture(autouse=True)
def offline(monkeypatch: Patch, tmp_path_factory: Folders) -> None:
    """Let wandb neither reach a network nor find the account of the machine."""
    for name in ("WANDB_API_KEY", "WANDB_PROJECT", "WANDB_DIR", "WANDB_BASE_URL", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("NETRC", str(home / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(home))
    monkeypatch.setenv("WANDB_MODE", "offline")
    wandb.teardown()  # it reads its variables once


def files(place: Place) -> list[Path]:
    wandb.teardown()  # its service may still be writing
    return sorted(place.folder.glob("wandb/wandb/offline-run-*/*.wandb"))


class TestWandb(LoggerSuite):
    @pytest.fixture
    def kind(self) -> LoggerKind:
        return LOGGERS.get("wandb")

    def read(self, place: Place, trial: LoggedTrial) -> Mapping[str, Mapping[int, float]]:
        found = [wandb_file.read(file) for file in files(place)]
        (values,) = [values for run, values in found if run["name"] == trial.name]
        return values

    def test_a_run_is_named_and_grouped_and_has_its_hps(self, kind: LoggerKind, place: Place) -> None:
        kind.make(place).open(trial := trial_named("sp/width=64/lr=2^-7/seed=3", 3)).close(FINISHED)
        (file,) = files(place)
        run, _ = wandb_file.read(file)
        assert (run["name"], run["group"], run["project"]) == (trial.name, "made", "hpxfer")
        assert {name: run["config"][name] for name in trial.config} == trial.config
        assert (run["summary"]["validation_loss_nats"], run["summary"]["status"]) == (2 / 3, "finished")
        assert run["exit_code"] == 0

    def test_new_results_have_new_runs(self, kind: LoggerKind, place: Place, tmp_path: Path) -> None:
        """wandb never gives the id of a deleted run again."""
        other = Place(sweep="made", results="other", folder=tmp_path / "other", writing=place.writing)
        for each in (place, place, other):
            kind.make(each).open(trial_named("sp/width=64/lr=2^-7/seed=3")).close(INTERRUPTED)
        (mine,), (of_other,) = ([wandb_file.read(file)[0] for file in files(each)] for each in (place, other))
        assert mine["id"] != of_other["id"]
        assert mine["exit_code"] == 1

    def test_the_users_own_project_and_folder_are_used(
        self, kind: LoggerKind, place: Place, monkeypatch: Patch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("WANDB_PROJECT", "ours")
        monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))
        kind.make(place).open(trial_named("sp/width=64/lr=2^-7/seed=3")).close(FINISHED)
        wandb.teardown()
        (file,) = (tmp_path / "elsewhere").glob("wandb/offline-run-*/*.wandb")
        assert wandb_file.read(file)[0]["project"] == "ours"
        assert files(place) == []


def test_without_an_account_the_user_hears_what_to_do(monkeypatch: Patch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    wandb.teardown()
    message = r"resources\.loggers: wandb must have an account .*`wandb login` .*WANDB_MODE=offline"
    with pytest.raises(HpxferError, match=message):
        LOGGERS.get("wandb").require()


@pytest.mark.parametrize("how", ["key", "netrc"])
def test_with_an_account_nothing_is_asked(monkeypatch: Patch, tmp_path: Path, how: str) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    if how == "key":
        monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    else:
        (tmp_path / "netrc").write_text(f"machine 127.0.0.1\n  login user\n  password {'a' * 40}\n")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    wandb.teardown()
    asked: list[Any] = []
    monkeypatch.setattr(wandb, "login", lambda *args, **options: asked.append(args))
    LOGGERS.get("wandb").require()
    assert asked == []


def test_an_illegal_variable_of_wandb_is_the_users_mistake(monkeypatch: Patch) -> None:
    monkeypatch.setenv("WANDB_MODE", "sideways")
    wandb.teardown()
    with pytest.raises(HpxferError, match=r"resources\.loggers: wandb cannot start: .*mode"):
        LOGGERS.get("wandb").require()
