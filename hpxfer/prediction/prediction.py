"""Predict: what a bigger model gets from a sweep: the HPs of each tensor, and the loss to expect, or why it is unknown.

This is the way from results to an answer. `path` says where the target lies, `losses` and `laws` what it loses there,
`tensors` what each tensor gets, and `text` how that is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from hpxfer.analysis import transfer_report
from hpxfer.errors import HpxferError, shown
from hpxfer.host.output import json_ready
from hpxfer.prediction.losses import LossAnswer, loss_at
from hpxfer.prediction.path import Off, Place, places
from hpxfer.prediction.tensors import TargetHPs, target_hps
from hpxfer.prediction.text import prediction_text
from hpxfer.recipe import Recipe, recipe_from_results, recipe_of
from hpxfer.recipe.from_sweep import arm_of
from hpxfer.recipe.recipe import Target, as_shape
from hpxfer.scaling.shape import Shape, check_shape
from hpxfer.search.verdict_rules import judged_by
from hpxfer.verdict.loss import NATS, JudgedLoss
from hpxfer.verdict.loss_grid import ShapeLosses, loss_grids

if TYPE_CHECKING:
    from hpxfer.analysis import TransferReport
    from hpxfer.results import Results

MAX_NEAR = 2  # axes that a reason names


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a sweep says of a target. `str()` is a text, and `to_dict()` holds the same as plain data."""

    sweep: str
    parameterization: str  # the label of the arm
    optimizer: str
    hp: str  # judged
    value: float  # of it: the best at the base, transferred
    loss_kind: str  # as in `judge.loss`
    base: Shape
    target: Shape  # with batch and steps
    hps: TargetHPs
    loss: LossAnswer | None  # None if the target lies on no axis
    why_no_loss: str | None  # None if the loss can be said
    judged: JudgedLoss = NATS  # what that loss is

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data. None stands for what cannot be said; `why_no_loss` and `hps.why_not` say why."""
        out: dict[str, Any] = json_ready(
            {
                **{name: getattr(self, name) for name in ("sweep", "parameterization", "optimizer", "hp", "value")},
                "loss_kind": self.loss_kind,
                "loss_unit": self.judged.unit,
                "base": self.base.dims(),
                "target": self.target.dims(),
                "tokens": self.target.tokens,
                "loss": None if self.loss is None else {**asdict(self.loss), "why_not": self.why_no_loss},
                "why_no_loss": self.why_no_loss,
                "hps": asdict(self.hps),
            }
        )
        return out

    def __str__(self) -> str:
        return prediction_text(self)


def predict(
    results: Results,
    target: Target,
    tokens: int | None = None,
    parameterization: str | None = None,
) -> Prediction:
    """Return the HPs of each tensor at `target`, and the loss of one run there with an interval, or why not.

    `results` comes from `load_results`. `target` is a Shape, or a mapping of its dimensions; without batch_tokens and
    steps it trains as the shapes of its axis do, or for `tokens`. `parameterization` names an arm of the sweep, by
    default the first one. Raises HpxferError if no model has this shape, and if nothing was tuned at the base.
    """
    if results.spec.trainer is not None:
        raise HpxferError(
            f"{results.folder}: predict knows the shapes of built-in families, got a sweep of your own trainer; the "
            "HPs of a bigger model are in its recipe (`hpxfer recipe`, `hpxfer export`)"
        )
    label = arm_of(results, parameterization)
    shape = _with_tokens(as_shape(target), tokens, results.spec.base_shape)
    why_no_line = results.why_no_line()
    report = None if why_no_line else transfer_report(results)
    recipe = recipe_of(results, label) if report is None else recipe_from_results(results, report, label)
    part, _ = results.expansion.arms[label]
    found, off = places(part.axes, shape, part.spec.model)
    base = results.spec.base_shape
    loss, why = None, why_no_line
    if report is not None:
        loss, why = _loss(results, report, recipe, label, found, off)
    chosen = next((place.shape for place in found if loss is not None and place.axis.name == loss.axis), None)
    whole = chosen or _as_base(shape, base)
    return Prediction(
        sweep=results.name,
        parameterization=label,
        optimizer=recipe.optimizer,
        hp=results.spec.judged_hp,
        value=recipe.hps.get(results.spec.judged_hp),
        loss_kind=results.spec.judge.loss,
        judged=judged_by(results.spec),
        base=base,
        target=whole,
        hps=target_hps(recipe, whole, part.setting),
        loss=loss,
        why_no_loss=why,
    )


def _with_tokens(shape: Shape, tokens: int | None, base: Shape) -> Shape:
    """Return the shape trained for so many tokens in batches of the base."""
    if tokens is None:
        return shape
    if shape.tokens:
        raise HpxferError("tokens: the target has batch_tokens and steps of its own; leave one of the two out")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise HpxferError(f"tokens: must be a whole number of at least 1, got {shown(tokens)}")
    if tokens % base.batch_tokens:
        near = max(round(tokens / base.batch_tokens), 1) * base.batch_tokens
        raise HpxferError(
            f"tokens: must be a multiple of the batch of {base.batch_tokens} tokens, got {shown(tokens)}; take {near}, "
            "or give the target batch_tokens and steps"
        )
    out = replace(shape, batch_tokens=base.batch_tokens, steps=tokens // base.batch_tokens)
    if problem := check_shape(out):
        raise HpxferError(f"tokens: {problem}")
    return out


def _as_base(shape: Shape, base: Shape) -> Shape:
    return shape if shape.tokens else replace(shape, batch_tokens=base.batch_tokens, steps=base.steps)


def _loss(
    results: Results,
    report: TransferReport,
    recipe: Recipe,
    label: str,
    found: Sequence[Place],
    off: Sequence[Off],
) -> tuple[LossAnswer | None, str | None]:
    """Return the answer of the first axis with the target that can say the loss, or of the first one and why not."""
    if not found:
        return None, _off_path(off)
    assert recipe.file.fitted is not None
    value = recipe.file.fitted.value
    assert value is not None
    rows = _rows(results, label)
    verdicts = {finding.axis: finding.verdict for finding in report.findings if finding.parameterization == label}
    answers = [
        loss_at(rows[place.axis.name], report.hp, value, place.scale, verdicts.get(place.axis.name))
        for place in found
        if rows.get(place.axis.name)
    ]
    if not answers:
        return None, f"no shape of the axis {found[0].axis.name} has a result from this base on"
    said = next((answer for answer in answers if answer.forecast is not None), answers[0])
    return said, said.why_not


def _rows(results: Results, label: str) -> Mapping[str, Sequence[ShapeLosses]]:
    """Return axis -> the losses of its shapes."""
    return {grid.axis: grid.rows for grid in loss_grids(results.line()) if grid.parameterization == label}


def _off_path(off: Sequence[Off]) -> str:
    near = "; ".join(each.why for each in off[:MAX_NEAR])
    more = f"; {len(off) - MAX_NEAR} other axes are further away" if len(off) > MAX_NEAR else ""
    return f"the target continues no axis of the sweep, and nothing is known beside the axes: {near}{more}"
