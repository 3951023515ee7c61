"""The rules of a verdict: how sure it must be, which regret counts as none, and what an arm is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from hpxfer.verdict.thresholds import CONTROL, ERROR_RATE, REGRET_SHARE


@dataclass(frozen=True, kw_only=True)
class Rules:
    """`error` bounds the chance of a wrong verdict. Exactly one of the two limits is given.

    `loss` is a share of the best loss, e.g. 0.01. `octaves` is the cost of so many octaves from a shape's own optimum.

    `outside` is for losses that another trainer measured. Nothing but the user says there which arm is the control and
    which shape the base. Without either no HP is said to transfer: the verdict is `stays`. A control that the user
    names stands beside all arms, whatever their name.

    `doubts` say why no loss of the trainer can be believed. With one of them, every verdict is `undecided`, with these
    reasons first. `seeds_differ` is for a trainer that may ignore its seed: exactly equal losses are such a doubt too.
    """

    error: float = ERROR_RATE
    loss: float | None = REGRET_SHARE
    octaves: float | None = None
    control: str | None = CONTROL  # the arm that the others are compared with; None: nobody named one
    outside: bool = False
    assumed_bases: tuple[str, ...] = ()  # the axes whose base nobody named, so that the smallest scale was taken
    doubts: tuple[str, ...] = ()
    seeds_differ: bool = False
    extra_sd: float = 0.0  # by how much runs of one seed differ, in the loss's unit; added to the noise of seeds


DEFAULT_RULES = Rules()
