"""Predict: what a bigger model gets from a sweep, its HPs by tensor and its loss, as data and as text.

This is the way from results to an answer. `path` says where the target lies, `losses` and `laws` what it loses there,
`tensors` what each tensor gets, and `text` how that is written.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from hpxfer.analysis import transfer_report
from hpxfer.errors import HpxferError, shown
from hpxfer.host import NATS, JudgedLoss, aligned, hp_text, json_ready, scale_text, shape_label
from hpxfer.model.families import FAMILIES
from hpxfer.prediction.explain import layout_numbers
from hpxfer.prediction.laws import Forecast
from hpxfer.prediction.losses import LossAnswer, Off, Place, loss_at, places
from hpxfer.recipe import BALANCED, Recipe, Resolved, Target, arm_of, as_shape, recipe_from_results, recipe_of
from hpxfer.scaling.evaluate import resolve
from hpxfer.scaling.numbers import OF_TENSOR, TensorNumbers, number_lines
from hpxfer.scaling.shape import Shape, check_shape
from hpxfer.search import judged_by
from hpxfer.verdict import ShapeLosses, loss_grids

if TYPE_CHECKING:
    from hpxfer.analysis import TransferReport
    from hpxfer.results import Results
    from hpxfer.trial import Setting


def prediction_text(found: Prediction) -> str:
    """Return the whole text."""
    parts = [[_sentence(found)], list(_hps(found)), list(_basis(found.loss, found.judged))]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _sentence(found: Prediction) -> str:
    target = found.target
    what = f"{target.label()} trained on {target.tokens} tokens"
    by = f"with {found.parameterization} and {found.hp} {hp_text(found.value) if found.value > 0 else '0'}"
    loss, judged = found.loss, found.judged
    kind = judged.words
    if loss is None or loss.forecast is None:
        return f"The {kind} of {what} {by} cannot be said: {found.why_no_loss}."
    ahead, near = loss.forecast, loss.nearest
    form = f"{{:.{_digits(ahead)}f}}"
    low, high = form.format(ahead.low), form.format(ahead.high)
    spelled = f"{form.format(ahead.loss)} {judged.unit} ({ahead.level:.0%} of runs: {low} to {high})"
    if near.scale == loss.scale:
        against = f"Measured there: {form.format(near.loss)} {judged.unit}, mean of {near.num_seeds} seeds."
    else:
        change = ahead.loss - near.loss
        side = "below" if change <= 0 else "above"
        measured = f"{form.format(near.loss)} measured at {_scale(loss, near.scale)}"
        against = f"That is {form.format(abs(change))} {side} the {measured}."
    return f"Expect a {kind} of {spelled} for {what}, {by}. {against}"


def _digits(ahead: Forecast) -> int:
    """Return how many digits after the point tell the ends of the interval apart."""
    return 3 if ahead.high - ahead.low >= 0.004 else 5


def _scale(loss: LossAnswer, scale: float) -> str:
    return shape_label(loss.scale_name, scale)


def _hps(found: Prediction) -> Iterator[str]:
    hps = found.hps
    heading = f"HPs of {found.parameterization}, {found.optimizer}: {found.base.label()} -> {found.target.label()}"
    if hps.why_not is not None:
        yield f"{heading}: cannot be said"
        yield from (f"  {line}" for line in hps.why_not.splitlines())
        return
    yield heading
    yield from (f"  {line}" for line in number_lines(hps.rows, (*OF_TENSOR, "note")))
    if hps.betas is not None:
        yield f"  betas {hps.betas[0]:.6g}, {hps.betas[1]:.6g}"
    if hps.router_bias_lr is not None:
        yield f"  router bias: updated by the balancing rule at {hps.router_bias_lr:g}, not by the optimizer"
    yield "Multiply in the forward pass"
    sites = hps.sites or {}
    yield from (
        f"  {line}"
        for line in aligned([(key, f"{factor:.6g}", sites[key]) for key, factor in (hps.forward or {}).items()])
    )
    yield from (f"By hand: {sentence}" for sentence in hps.by_hand)


def _basis(loss: LossAnswer | None, judged: JudgedLoss) -> Iterator[str]:
    """Yield what the loss rests on: the measured shapes, and the laws that they leave possible."""
    if loss is None or not loss.shapes:
        return
    yield f"Measured along {loss.axis} at this HP"
    rows = [
        (
            shape.shape,
            _scale(loss, shape.scale),
            f"{shape.loss:.4f}",
            f"{shape.num_seeds} seeds",
        )
        for shape in loss.shapes
    ]
    yield from (f"  {line}" for line in aligned(rows))
    ahead = loss.forecast
    if ahead is None:
        return
    yield (
        f"  gain per doubling {judged.amount(ahead.gain)} (root mean square over neighbors), "
        f"noise of one seed {judged.amount(ahead.noise)}"
    )
    yield ""
    yield f"The loss at {loss.name} by each law of the gain, with the interval of {ahead.level:.0%} of runs"
    laws = [("law", "weight", "loss", "interval")]
    for law in ahead.laws:
        laws.append((law.law, f"{law.weight:.0%}", f"{law.loss:.4f}", f"{law.low:.4f}..{law.high:.4f}"))
    yield from (f"  {line}" for line in aligned(laws))
    yield f"  about its law the gain may wander by {ahead.wander:.0%} of itself per doubling"
    ends = [scale_text(shape.scale) for shape in (loss.shapes[0], loss.shapes[-1])]
    inside = loss.shapes[0].scale <= loss.scale <= loss.shapes[-1].scale
    yield f"  {loss.name} lies {'within' if inside else 'beyond'} the measured {loss.scale_name} {ends[0]} to {ends[1]}"
    if loss.verdict is not None and loss.verdict != "transfers":
        yield f"  the verdict along {loss.axis} is {loss.verdict!r}, so that another HP may be better there"


@dataclass(frozen=True, kw_only=True)
class TargetHPs:
    """The HPs at a target: of each tensor, and of the forward pass. Empty if `why_not` says why there are none."""

    rows: tuple[TensorNumbers, ...] = ()  # in the order of the model
    forward: Mapping[str, float] | None = None  # key of `Recipe.forward_multipliers` -> factor
    sites: Mapping[str, str] | None = None  # key -> what is multiplied by it
    betas: tuple[float, float] | None = None  # None if the optimizer has none
    router_bias_lr: float | None = None  # the rate of the balancing rule; None without one
    by_hand: tuple[str, ...] = ()  # what the model must do itself, one sentence each
    cautions: tuple[str, ...] = ()  # how the target lies beyond what was measured
    why_not: str | None = None


def target_hps(recipe: Recipe, target: Shape, setting: Setting) -> TargetHPs:
    """Return the HPs of every tensor of a model with this setting at the target."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            values, forward = recipe.multipliers(target), recipe.forward_multipliers(target)
            at = Resolved(recipe, target)
            rate = recipe.router_bias_lr(target) if setting.balance.bias != "none" and BALANCED in values else None
            if setting.mlp.learned_bias_std is not None:  # the recipe's number is the rate of the balancing rule
                known = recipe.parameterization, recipe.base_shape, target, recipe.column, recipe.hps, recipe.init
                trained = resolve(*known, learned_bias_std=setting.mlp.learned_bias_std)
                values = {**values, BALANCED: trained[BALANCED]}
            tensors = FAMILIES.get(setting.family).parameters(target, setting)
            rows = layout_numbers(tensors, values, recipe.column)
        except HpxferError as error:
            return TargetHPs(why_not=str(error))
    said: dict[str, Any] = {
        str(one.message): None for one in caught if type(one.message).__module__.startswith("hpxfer.")
    }
    return TargetHPs(
        rows=rows,
        forward=forward,
        sites=recipe.forward_sites(),
        betas=at.betas,
        router_bias_lr=rate,
        by_hand=at.by_hand,
        cautions=tuple(said),
    )


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
                "hps": {**asdict(self.hps), "rows": [row.to_dict() for row in self.hps.rows]},
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

    >>> results = hpxfer.load_results("results/published/quickstart")
    >>> target = hpxfer.Shape(width=256, depth=2, num_experts=4, num_active=1, expert_width=256, head_dim=32)
    >>> forecast = hpxfer.predict(results, target).loss.forecast
    >>> f"{forecast.loss:.2f} nats, {forecast.low:.2f} to {forecast.high:.2f} with a probability of {forecast.level}"
    '2.34 nats, 2.29 to 2.39 with a probability of 0.9'
    """
    if results.spec.trainer is not None:
        raise HpxferError(
            f"{results.folder}: predict knows the shapes of built-in families, got a sweep of your own trainer; the "
            "HPs of a bigger model are in its recipe (`hpxfer recipe write`, `hpxfer recipe export`)"
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
