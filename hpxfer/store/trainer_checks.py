"""What the checks of a user's own trainer found: trainer_check.json beside the results, and whether it counts."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hpxfer.errors import HpxferError
from hpxfer.host import read_bytes, reason, text_writer, write_folder
from hpxfer.spec import TrainerSpec
from hpxfer.trial import trainer_code

CHECK_FILE = "trainer_check.json"
Status = Literal["passed", "failed", "not possible"]
# With one of these failed, a verdict is about another training than the one that was asked for.
DECISIVE = ("parameter groups", "seeds")


class Outcome(BaseModel):
    """What a check says: that all is well, what is wrong, or what is missing to tell."""

    model_config = ConfigDict(frozen=True)

    check: str
    status: Status
    reason: str

    def __str__(self) -> str:
        return f"{self.check}: {self.status}: {self.reason}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


class TrainerChecks(BaseModel):
    """The outcomes of all checks of a trainer, and what they mean for its verdicts."""

    model_config = ConfigDict(frozen=True)

    hpxfer_check: Literal[1] = 1
    code: str  # of the trainer, see `trainer_code`
    steps: int  # of each of their trials
    made_at: str = Field(default_factory=_now)  # UTC
    outcomes: tuple[Outcome, ...]
    extra_sd: float  # by how much runs of one seed differ beyond seeds, in the unit of the trainer's loss

    @property
    def undecided_because(self) -> str | None:
        """Why a verdict on losses of this trainer is `undecided` at best; None if it may be more."""
        return "; ".join(each for each in self.faults if each.partition(":")[0] in DECISIVE) or None

    @property
    def faults(self) -> tuple[str, ...]:
        """What failed, and why."""
        return tuple(f"{each.check}: {each.reason}" for each in self.outcomes if each.status == "failed")

    def counts_for(self, trainer: TrainerSpec) -> bool:
        """Return whether they were made with the code of this trainer."""
        return self.code == trainer_code(trainer)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {**self.model_dump(mode="json"), "undecided_because": self.undecided_because}


def checks_text(checks: TrainerChecks | None, trainer: TrainerSpec) -> str:
    """Return in one line what the checks of a trainer found, e.g. `trainer checks: passed: init; failed: schedule`."""
    if checks is None:
        return "trainer checks: not made; run hpxfer check --trainer SWEEP"
    if not checks.counts_for(trainer):
        return (
            "trainer checks: outdated, as the trainer has changed since, so that they do not count; "
            "run hpxfer check --trainer SWEEP again"
        )
    names = {each: [one.check for one in checks.outcomes if one.status == each] for each in get_args(Status)}
    return "trainer checks: " + "; ".join(f"{status}: {', '.join(of)}" for status, of in names.items() if of)


def write_checks(folder: Path, checks: TrainerChecks) -> Path:
    """Write trainer_check.json over an older one. Return its path."""
    path = folder / CHECK_FILE
    write_folder({path: text_writer(json.dumps(checks.to_dict(), indent=1))}, folder, "check", "--results")
    return path


def read_checks(folder: Path) -> TrainerChecks | None:
    """Return the checks in a results folder; None if there are none. Raise HpxferError if they cannot be read."""
    path = folder / CHECK_FILE
    try:
        return TrainerChecks.model_validate_json(read_bytes(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {reason(error)}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise HpxferError(f"{path}: {where}{first['msg']}; hpxfer check --trainer SWEEP.yaml makes it anew") from None
