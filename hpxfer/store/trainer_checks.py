"""What the checks of a user's own trainer found: trainer_check.json beside the results, and whether it counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from hpxfer.errors import HpxferError
from hpxfer.host.files import read_bytes, reason, text_writer, write_folder
from hpxfer.spec.own import TrainerSpec
from hpxfer.trial.setting import trainer_code

CHECK_FILE = "trainer_check.json"
Status = Literal["passed", "failed", "not possible"]
STATUSES: tuple[Status, ...] = ("passed", "failed", "not possible")


@dataclass(frozen=True, kw_only=True)
class CheckedFact:
    """One check: its name, how it ended, and why."""

    check: str
    status: Status
    reason: str


@dataclass(frozen=True, kw_only=True)
class TrainerChecks:
    """The outcomes of all checks of a trainer, and what they mean for its verdicts."""

    hpxfer_check: Literal[1] = 1
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
        return asdict(self)


_CHECKS = TypeAdapter(TrainerChecks)


def checks_text(checks: TrainerChecks | None, trainer: TrainerSpec) -> str:
    """Return in one line what the checks of a trainer found, or that nobody made them."""
    if checks is None:
        return "trainer checks: not made; run hpxfer check --trainer SWEEP"
    return checks.text(trainer)


def write_checks(folder: Path, checks: TrainerChecks) -> Path:
    """Write trainer_check.json, complete or not at all, over an older one. Return its path."""
    path = folder / CHECK_FILE
    write_folder({path: text_writer(_CHECKS.dump_json(checks, indent=1).decode())}, folder, "check", "--results")
    return path


def read_checks(folder: Path) -> TrainerChecks | None:
    """Return the checks in a results folder; None if there are none. Raise HpxferError if they cannot be read."""
    path = folder / CHECK_FILE
    try:
        return _CHECKS.validate_json(read_bytes(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {reason(error)}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise HpxferError(
            f"{path}: {where + ': ' if where else ''}{first['msg']}; hpxfer check --trainer SWEEP.yaml makes it anew"
        ) from None
