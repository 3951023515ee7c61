"""What is expected along a path of shapes: by the source of a table, by its own rows, and of any good table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpxfer.coordinates.derive import NOT_DERIVED, derive
from hpxfer.coordinates.measure import Fit, Observation, Prediction, fit
from hpxfer.coordinates.optimizer_rules import decay_rule, eps_as_gradients, eps_rule
from hpxfer.coordinates.path_facts import PathFacts
from hpxfer.coordinates.predict import predict
from hpxfer.coordinates.stability import stability
from hpxfer.scaling.claims import Claim
from hpxfer.scaling.evaluate import Parameterization, ratios
from hpxfer.scaling.monomial import ZERO
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column
from hpxfer.scaling.tables import PARAMETERIZATIONS


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A table under an optimizer, as the source of predictions."""

    choice: Parameterization
    optimizer: Column
    claims: Sequence[Claim] | None = None  # in place of those of the table

    @property
    def is_registered(self) -> bool:
        """Whether the table is a user's, to be judged by its own rows and by what a good table does."""
        return self.claims is None and PARAMETERIZATIONS.module(self.choice.name) is not None

    def predictions(
        self, base: Shape, shapes: Sequence[Shape], scales: Sequence[float], facts: PathFacts
    ) -> tuple[Prediction, ...]:
        """Return what the table's source claims; for a registered table, what its own rows imply."""
        if self.is_registered:
            return (*derive(self.choice, self.optimizer, facts), *NOT_DERIVED)
        at = [ratios(base, shape) for shape in shapes]
        claims = self.choice.claims(self.optimizer) if self.claims is None else self.claims
        found = predict(claims, scales, at)
        if not found:
            return ()
        eps = eps_as_gradients(self.choice, found, self._eps_rule(facts))
        return (*found, *eps, *decay_rule(self.choice, self.optimizer, facts))

    def stability(self, observations: Sequence[Observation], facts: PathFacts, tolerance: float) -> tuple[Fit, ...]:
        """Return the slopes of what keeps its size under a good table."""
        good = (
            *stability(facts, self.optimizer, zero_readout=self.zero_readout),
            *self._eps_rule(facts),
            *decay_rule(self.choice, self.optimizer, facts),
        )
        asked = [seen for seen in observations if any(expected.is_about(seen) for expected in good)]
        return fit(asked, good, tolerance)

    @property
    def zero_readout(self) -> bool:
        """Whether the readout starts from zero."""
        return any(row.role == "readout" and row.init_std == ZERO for row in self.choice.rows(self.optimizer))

    def _eps_rule(self, facts: PathFacts) -> tuple[Prediction, ...]:
        # Behind a zero readout no gradient reaches the other roles before the first update.
        return tuple(eps_rule(self.choice, facts, first=int(self.zero_readout)))
