"""JudgedLoss: the loss that a verdict is about: its unit, how it is written, and how well held-out samples tell it.

An error is the share of the held-out samples that a model gets wrong, and is written as accuracy. It differs from a
loss in nats in three ways:

- It is a share of n samples. The share of other samples would differ with variance p (1 - p) / n, the binomial error.
- It has equal values, as it is a multiple of 1/n.
- It is bounded. A model that guesses, or whose training died, has the error of guessing, which no HP makes worse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Kind = Literal["cross entropy", "squared error", "error"]
UNITS: dict[Kind, str] = {"cross entropy": "nats", "squared error": "squared error", "error": "points"}
PERCENT = 100.0
# A shape has learned something if its best error lies this many binomial standard errors below that of guessing.
LEARNED_SE = 4.0


@dataclass(frozen=True, kw_only=True)
class JudgedLoss:
    """A loss by its name in `judge.loss`. An error has the error of guessing and the number of held-out samples."""

    name: str = "validation"
    words: str = "validation loss"  # an error: `validation error`, `validation top-5 error`
    kind: Kind = "cross entropy"
    guess: float | None = None  # the error of a model that guesses all classes alike
    num_samples: int | None = None  # that an error is a share of
    trained: Kind = "cross entropy"  # the kind of the loss that the sweep trains with
    own_unit: str | None = None  # of a loss that others measured, e.g. bits per byte; None: that of its kind

    @property
    def is_error(self) -> bool:
        return self.kind == "error"

    @property
    def unit(self) -> str:
        """The unit of a difference: nats, squared error, or points, which are hundredths of the samples."""
        return self.own_unit or UNITS[self.kind]

    @property
    def training_unit(self) -> str:
        """The unit of the training loss, whatever loss is judged."""
        return UNITS[self.trained] if self.own_unit is None else self.own_unit

    @property
    def data_unit(self) -> str:
        """The unit of the numbers in data that is not for reading, such as JSON and CSV: an error is a share there."""
        return "share" if self.is_error else self.unit

    @property
    def shown(self) -> str:
        """What pages call the number that they show: an error is shown as accuracy."""
        return self.words.replace("error", "accuracy") if self.is_error else self.words

    @property
    def noun(self) -> str:
        """What is given up or lost: `loss`, or `accuracy` and `top-5 accuracy`."""
        return self.shown.removeprefix("validation ") if self.is_error else "loss"

    @property
    def of_noun(self) -> str:
        """What follows an amount in a sentence: nothing for a loss, `of accuracy ` for an error."""
        return f"of {self.noun} " if self.is_error else ""

    @property
    def difference(self) -> str:
        """What is subtracted in a regret, at the start of a sentence."""
        return "Error" if self.is_error else "Loss"

    @property
    def signed_unit(self) -> str:
        """The unit of a change that may go either way: nats, squared error, or points of error."""
        return "points of error" if self.is_error else self.unit

    @property
    def best(self) -> str:
        """The heading of a column of best losses."""
        return f"best {self.noun}, {self.level_unit}"

    @property
    def measured_best(self) -> str:
        """The heading of a column of lowest measured losses."""
        return f"{self.extreme} measured {self.noun}, {self.level_unit}"

    @property
    def extreme(self) -> str:
        """Which of several losses is the best, as pages show them."""
        return "highest" if self.is_error else "lowest"

    @property
    def level_unit(self) -> str:
        """The unit of a loss as pages show it: nats, squared error, or % of the samples."""
        return "%" if self.is_error else self.unit

    @property
    def given_up(self) -> str:
        """The heading of a column of regrets."""
        return f"{self.noun} given up, {self.unit}"

    @property
    def whole(self) -> str:
        """What a regret is a share of."""
        return "basin depth" if self.is_error else "loss"

    def column(self, name: str) -> str:
        """Return the name of a column of losses in data: `mean_nats` is `mean_share` of an error."""
        return _column(name, self.data_unit)

    def training_column(self, name: str) -> str:
        """Return the name of a column of training losses in data."""
        return _column(name, self.training_unit)

    def percent(self, error: float) -> float:
        """Return the accuracy of an error, in percent."""
        return PERCENT * (1 - error)

    def level(self, loss: float, form: str = "{:.4f}") -> str:
        """Return a loss as a page shows it, without its unit: `3.1415`, or the accuracy `62.30`."""
        return f"{self.percent(loss):.2f}" if self.is_error else form.format(loss)

    def level_with_unit(self, loss: float, form: str = "{:.4f}") -> str:
        """Return a loss as a page shows it: `3.1415 nats`, or the accuracy `62.30%`."""
        return f"{self.level(loss, form)}{'' if self.is_error else ' '}{self.level_unit}"

    def number(self, difference: float, form: str = "{:.2g}") -> str:
        """Return a difference of losses without its unit: `0.017`, or `1.7` points."""
        return form.format(self.scaled(difference))

    def amount(self, difference: float, form: str = "{:.2g}") -> str:
        """Return a difference of losses with its unit: `0.017 nats`, or `1.7 points`."""
        return f"{self.number(difference, form)} {self.unit}"

    def scaled(self, difference: float) -> float:
        """Return a difference of losses in the unit that pages have."""
        return PERCENT * difference if self.is_error else difference

    @overload
    def binomial(self, loss: float) -> float: ...

    @overload
    def binomial(self, loss: Floats) -> Floats: ...

    def binomial(self, loss: float | Floats) -> float | Floats:
        """Return the variance of an error over the choice of the held-out samples; 0 for a loss that is no error.

        The share is taken a little towards a half, by one sample of which half is wrong (Jeffreys 1946): no error at
        all in n samples leaves an error of about 1/n open.
        """
        if self.num_samples is None:
            return np.zeros_like(loss) if isinstance(loss, np.ndarray) else 0.0
        share = (loss * self.num_samples + 0.5) / (self.num_samples + 1)
        return share * (1 - share) / self.num_samples

    def has_learned(self, loss: float) -> bool:
        """Return whether a loss is lower than that of guessing. Without the loss of guessing, it is taken to be."""
        if self.guess is None:
            return True
        return bool(self.guess - loss > LEARNED_SE * math.sqrt(self.binomial(self.guess)))

    def basin_depth(self, best: float) -> float:
        """Return what shares are taken of: the best loss or, of an error, how far it lies below that of guessing."""
        return abs(best) if self.guess is None else max(self.guess - best, 0.0)


def _column(name: str, unit: str) -> str:
    return f"{name.removesuffix('nats')}{unit.replace(' ', '_')}" if name.endswith("_nats") else name


NATS = JudgedLoss()
