"""Transferred: the base's best values, trained at another shape. The regret there is the cost of a transfer."""

from __future__ import annotations

from collections.abc import Sequence

from hpxfer.search.protocol import Arm
from hpxfer.search.rounds import ArmStrategy, End, Round, Strategy
from hpxfer.spec import SweepSpec


def transferred(spec: SweepSpec, arm: Arm, hps: Sequence[str], *, after: ArmStrategy) -> ArmStrategy:
    """Return the strategy that trains one point of an arm: the best of HPs that `after` has found at the base."""

    def start(base: End | None) -> Strategy:
        assert base is not None, "it starts after the base's search has ended"
        assert base.best is not None, "it does not start if that search found nothing"
        best = " and ".join(f"{hp} {base.best.get(hp):.4g}" for hp in hps)
        yield Round(points=(base.best,), why=f"the base's best {best}, for its regret here")
        return End(why="measured", best=None)

    seeds = len(spec.seeds)
    name = f"{' x '.join(hps)} from the base"
    return ArmStrategy(arm=arm, name=name, start=start, budget=seeds, most=seeds, after=after)
