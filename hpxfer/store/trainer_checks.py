"""What the checks of a user's own trainer found: trainer_check.json beside the results, and whether it counts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.host.files import read_text, reason, write_files
from hpxfer.spec.own import TrainerSpec
from hpxfer.trial.setting import trainer_code

CHECK_FILE = "trainer_check.json"
VERSION = 1
STATUSES = ("passed", "failed", "not possible")
FIX = "hpxfer check --trainer SWEEP.yaml makes it anew"


@dataclass(frozen=True, kw_only=True)
class CheckedFact:
    """One check: its name, `passed`, `failed` or `not possible`, and why."""

    check: str
    status: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class TrainerChecks:
    """The outcomes of all checks of a trainer, and what they mean for its verdicts."""

    code: str  # of the trainer, see `trainer_code`
    steps: int  # of each of their trials
    made_at: str  # UTC
    outcomes: tuple[CheckedFact, ...]
    undecided_because: str | None  # why no verdict is more than `undecided`
    extra_sd: float  # by how much runs of one seed differ beyond seeds, in the unit of the trainer's loss

    def counts_for(self, trainer: TrainerSpec) -> bool:
        """Return whether they were made with the code of this trainer."""
        return self.code == trainer_code(trainer)

    def text(self, trainer: TrainerSpec) -> str:
        """Return them in one line, e.g. `trainer checks: passed: init, seeds; failed: schedule`."""
        if not self.counts_for(trainer):
            return (
                "trainer checks: outdated, as the trainer has changed since, so that they do not count; "
                "run hpxfer check --trainer SWEEP again"
            )
        by_status = {status: [each.check for each in self.outcomes if each.status == status] for status in STATUSES}
        found = "; ".join(f"{status}: {', '.join(names)}" for status, names in by_status.items() if names)
        return f"trainer checks: {found}"

    def faults(self) -> tuple[str, ...]:
        """Return what failed, and why."""
        return tuple(f"{each.check}: {each.reason}" for each in self.outcomes if each.status == "failed")

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {"hpxfer_check": VERSION, **asdict(self)}


def checks_text(checks: TrainerChecks | None, trainer: TrainerSpec) -> str:
    """Return in one line what the checks of a trainer found, or that nobody made them."""
    if checks is None:
        return "trainer checks: not made; run hpxfer check --trainer SWEEP"
    return checks.text(trainer)


def write_checks(folder: Path, checks: TrainerChecks) -> Path:
    """Write trainer_check.json, complete or not at all, over an older one. Return its path."""
    path = folder / CHECK_FILE
    content = (json.dumps(checks.to_dict(), indent=1, allow_nan=False) + "\n").encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_files({path: lambda file: file.write(content)})
    except OSError as error:
        raise HpxferError(f"{path}: cannot be written: {reason(error)}; make room, or name another folder") from None
    return path


def read_checks(folder: Path) -> TrainerChecks | None:
    """Return the checks in a results folder; None if there are none. Raise HpxferError if they cannot be read."""
    path = folder / CHECK_FILE
    try:
        data = json.loads(read_text(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {reason(error)}; {FIX}") from None
    except (ValueError, RecursionError):
        raise HpxferError(f"{path}: must be JSON, got something else; {FIX}") from None
    if not isinstance(data, dict) or data.get("hpxfer_check") != VERSION:
        raise HpxferError(f"{path}: hpxfer_check: must be {VERSION}; {FIX}")
    try:
        return TrainerChecks(
            code=str(data["code"]),
            steps=int(data["steps"]),
            made_at=str(data["made_at"]),
            outcomes=_outcomes(data["outcomes"]),
            undecided_because=None if data["undecided_because"] is None else str(data["undecided_because"]),
            extra_sd=float(data["extra_sd"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise HpxferError(f"{path}: must hold what hpxfer wrote, got a fault at {error}; {FIX}") from None


def _outcomes(rows: Sequence[dict[str, Any]]) -> tuple[CheckedFact, ...]:
    out = tuple(CheckedFact(**{name: str(value) for name, value in row.items()}) for row in rows)
    if wrong := [each.status for each in out if each.status not in STATUSES]:
        raise ValueError(f"status {wrong[0]!r}")
    return out
