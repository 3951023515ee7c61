"""How a prediction is written: one sentence on the loss, the HPs of each tensor, and what the loss rests on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hpxfer.host.output import aligned
from hpxfer.prediction.laws import Forecast
from hpxfer.recipe.explain import tensor_lines
from hpxfer.verdict.labels import scale_text, shape_label
from hpxfer.verdict.loss import JudgedLoss
from hpxfer.verdict.text import hp_text

if TYPE_CHECKING:
    from hpxfer.prediction.losses import LossAnswer
    from hpxfer.prediction.prediction import Prediction


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
    header, *lines = tensor_lines(hps.rows)
    yield f"  {header}"
    wide = max(map(len, lines), default=0)
    for row, line in zip(hps.rows, lines, strict=True):
        yield f"  {line.ljust(wide)}  {row.note}" if row.note else f"  {line}"
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
