"""Why a trial is stored or not, and in what its identity differs from that of the nearest stored trial.

The identity of a stored row is rebuilt from the row alone and hashed again. Rows whose hash is not their own id are
left out of the comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal

from hpxfer.errors import HpxferError, shown
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.resolve import BaseInit
from hpxfer.scaling.tables import is_known, table_of
from hpxfer.store.merge import DONE, STOPPED
from hpxfer.store.proof import proven_identity
from hpxfer.trial import Expansion, Setting, Trial
from hpxfer.trial.identity import hps_of

Flat = Mapping[str, Any]
# The states that are not plain: `reused`, another folder has the trial; `stopped`, an early-stopping rule ended it and
# the sweep no longer has that rule; `left`, it is stored, but the sweep no longer holds it.
State = Literal["stored", "reused", "failed", "stopped", "missing", "left"]

# How many candidates the message about an ambiguous prefix names.
MOST_NAMED = 8
_ABSENT = "nothing"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A key path in which two identities differ. None stands for a key that is absent, too."""

    key: str
    of_trial: Any
    of_nearest: Any


@dataclass(frozen=True, kw_only=True)
class Why:
    """Why one trial is stored or not. `nearest` is a stored trial; for a trial that the sweep left, it is one of the
    sweep.
    """

    trial_id: str
    state: State
    status: str | None  # of the stored row
    error: str | None = None  # the last line of a failed trial's error
    folder: str | None = None  # from which a run would copy a reused trial
    nearest: str | None = None
    nearest_status: str | None = None
    differences: tuple[Difference, ...] = ()
    num_unproven: int = 0  # stored rows whose identity does not hash to their own id

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON-ready data."""
        return asdict(self)


def explain_trial(
    prefix: str,
    trials: Iterable[Trial],
    expansion: Expansion,
    rows: Sequence[Mapping[str, Any]],
    reused: Mapping[str, str] | None = None,
) -> Why:
    """Return why the trial with this id, or with this unique prefix of one, is stored or not.

    `trials` are the sweep's trials and `rows` the stored rows of the table TRIALS. `reused` maps the id of a trial to
    the other folder from which a run would copy it. A trial that is not stored is compared with the nearest stored one.
    A stored trial that the sweep no longer holds is compared with the nearest trial of the sweep. Raises HpxferError if
    no id, or more than one, starts with `prefix`.
    """
    of_sweep = {trial.id: trial for trial in trials}
    stored = {row["trial_id"]: row for row in rows}
    trial_id = _only(prefix, {**of_sweep, **stored})
    row = stored.get(trial_id)
    status = None if row is None else row["status"]
    if trial_id not in of_sweep:
        own = proven_identity(stored[trial_id])
        if own is None:
            return Why(trial_id=trial_id, state="left", status=status, num_unproven=1)
        others = {key: flat(identity_of(trial, expansion)) for key, trial in of_sweep.items()}
        return _compared(trial_id, "left", status, flat(own), others, {})
    if status in DONE or (status == STOPPED and expansion.spec.early_stopping.asha is not None):
        return Why(trial_id=trial_id, state="stored", status=status)
    if reused and trial_id in reused:
        return Why(trial_id=trial_id, state="reused", status=status, folder=reused[trial_id])
    if status == STOPPED:
        return Why(trial_id=trial_id, state="stopped", status=status)
    if row is not None:
        lines = (row["error"] or "").strip().splitlines()
        return Why(trial_id=trial_id, state="failed", status=status, error=lines[-1] if lines else None)
    proven = {
        key: flat(found) for key, stored_row in stored.items() if (found := proven_identity(stored_row)) is not None
    }
    statuses = {key: stored[key]["status"] for key in proven}
    wanted = flat(identity_of(of_sweep[trial_id], expansion))
    return _compared(trial_id, "missing", None, wanted, proven, statuses, len(stored) - len(proven))


def why_text(why: Why) -> str:
    """Return the answer as lines for a terminal."""
    not_done = {
        "missing": "not stored: a run trains it",
        "reused": f"not stored here: a run copies it from {why.folder}",
        "failed": f"failed, and a run tries it again: {why.error}",
        "stopped": "stopped early, which this sweep does not ask for: a run trains it to its end",
        "left": f"stored ({why.status}), but no trial of this sweep",
    }
    lines = [f"trial {why.trial_id}: {not_done.get(why.state, f'stored ({why.status}): no run trains it again')}"]
    if why.nearest is not None:
        what = "trial of the sweep" if why.state == "left" else f"stored trial ({why.nearest_status})"
        lines.append(f"nearest {what}: {why.nearest}; it differs in")
        width = max(len(difference.key) for difference in why.differences)
        lines += [
            f"  {found.key:<{width}}  {_spelled(found.of_trial)} here, {_spelled(found.of_nearest)} there"
            for found in why.differences
        ]
    elif why.state == "missing":
        lines.append("no trial is stored that it could be compared with")
    if why.num_unproven:
        lines.append(f"{why.num_unproven} stored rows do not hash to their own id, and are left out")
    return "\n".join(lines)


def identity_of(trial: Trial, expansion: Expansion) -> dict[str, Any]:
    """Return what determines a trial's numbers."""
    return expansion.identity(trial.parameterization, trial.shape, hps_of(trial.hps), trial.seed)


def flat(identity: Mapping[str, Any]) -> Flat:
    """Return key path -> value, e.g. `setting.init.matrices` or `hps.router.lr_mult`, with every default."""
    hps = {**_defaults(HPs), **identity["hps"]}
    multipliers = dict(hps.pop("multipliers"))
    setting = _filled(_defaults(Setting), identity["setting"])
    out = {**identity, "setting": setting, "hps": {**hps, **multipliers}}
    if chosen := identity.get("parameterization"):
        name = chosen["name"]
        table = table_of(name) if is_known(name) else None
        known = {} if table is None else {key: convention.default for key, convention in table.conventions.items()}
        out["parameterization"] = {**chosen, "conventions": {**known, **chosen.get("conventions", {})}}
    return dict(_paths(out, ""))


def _defaults(kind: type[HPs] | type[Setting]) -> dict[str, Any]:
    found = {field.name: field.default for field in fields(kind) if field.default is not MISSING}
    return {name: asdict(value) if isinstance(value, BaseInit) else value for name, value in found.items()}


def _filled(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `defaults` with the given values in their place, in nested mappings too."""
    nested = {name: _filled(value, given.get(name, {})) for name, value in defaults.items() if isinstance(value, dict)}
    return {**defaults, **given, **nested}


def _paths(value: Any, path: str) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, nested in value.items():
            yield from _paths(nested, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _only(prefix: str, known: Iterable[str]) -> str:
    """Return the one id that starts with the prefix."""
    ids = list(known)
    found = [trial_id for trial_id in ids if trial_id.startswith(prefix)] if prefix else []
    if len(found) == 1:
        return found[0]
    fix = "`hpxfer plan SWEEP --trials` lists them"
    if not found:
        raise HpxferError(
            f"--why: no trial of this sweep or its results folder has an id that starts with {shown(prefix)}; {fix}"
        )
    named = ", ".join(found[:MOST_NAMED]) + (", ..." if len(found) > MOST_NAMED else "")
    raise HpxferError(
        f"--why: {shown(prefix)} must be the start of one trial's id, got {len(found)}: {named}; give more of it"
    )


def _compared(
    trial_id: str,
    state: State,
    status: str | None,
    own: Flat,
    others: Mapping[str, Flat],
    statuses: Mapping[str, str],
    num_unproven: int = 0,
) -> Why:
    nearest = min(others, key=lambda key: (*_distance(own, others[key]), key), default=None)
    found = () if nearest is None else tuple(_differences(own, others[nearest]))
    return Why(
        trial_id=trial_id,
        state=state,
        status=status,
        nearest=nearest,
        nearest_status=None if nearest is None else statuses.get(nearest),
        differences=found,
        num_unproven=num_unproven,
    )


def _distance(own: Flat, other: Flat) -> tuple[int, float]:
    """Return how many key paths differ, then the sum of the octaves between differing HPs."""
    keys = _differing(own, other)
    return len(keys), sum(_octaves(own.get(key), other.get(key)) for key in keys if key.startswith("hps."))


def _octaves(left: Any, right: Any) -> float:
    # A multiplier that is absent is 1.
    low, high = sorted(1.0 if number is None else float(number) for number in (left, right))
    return math.log2(high / low) if low > 0 else math.inf


def _differences(own: Flat, other: Flat) -> Iterable[Difference]:
    for key in _differing(own, other):
        yield Difference(key=key, of_trial=own.get(key), of_nearest=other.get(key))


def _differing(own: Flat, other: Flat) -> list[str]:
    return [key for key in dict.fromkeys((*own, *other)) if own.get(key, _ABSENT) != other.get(key, _ABSENT)]


def _spelled(value: Any) -> str:
    return "none" if value is None else str(value)
