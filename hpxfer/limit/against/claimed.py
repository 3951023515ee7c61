"""claimed_network: the infinite network that a table claims to approach, whatever its rows make of finite ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hpxfer.limit.against.constants import Constant, constants_of
from hpxfer.limit.against.of_trials import SAME, changes, network_of
from hpxfer.limit.network import Network, Role
from hpxfer.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """The network, and where the numbers or draws of the trials are not those of a path to it, in words."""

    network: Network
    differences: tuple[str, ...]


def claimed_network(trials: Sequence[Trial], claimed: Sequence[Trial], table: str, where: str = "limit") -> Claimed:
    """Return the network that `trials` should approach. `claimed` are the same trials under the table `table`.

    Both are one trial per shape of a path, ascending. What the numbers of the trials have beyond the table at every
    shape alike is a constant of the network. What changes along the path has no place in a limit: there the network has
    the table's own numbers, and networks that follow the trials miss it. Raise HpxferError, which names `where`, if the
    limit of `table` is not solved.
    """
    network = network_of(claimed, where)
    rows = [constants_of(trial, table) for trial in trials]
    init_mult, lr_mult = dict(network.init_mult), dict(network.lr_mult)
    for role in rows[0]:
        if _stays(std := [row[role].std for row in rows]):
            init_mult[role] = std[0]
        if _stays(rate := [row[role].rate for row in rows]):
            lr_mult[role] = rate[0]
    return Claimed(
        network=replace(network, init_mult=init_mult, lr_mult=lr_mult),
        differences=tuple(_differences(trials, claimed, table, rows)),
    )


def _stays(values: Sequence[float]) -> bool:
    return all(math.isfinite(value) and math.isclose(value, values[0], rel_tol=SAME) for value in values)


def _differences(
    trials: Sequence[Trial], claimed: Sequence[Trial], table: str, rows: Sequence[dict[Role, Constant]]
) -> Iterator[str]:
    for role in rows[0]:
        yield from (f"{change}, over {table}" for change in changes(trials, rows, role))
    own, theirs = trials[0].structure().tied_experts, claimed[0].structure().tied_experts
    if own != theirs:
        drawn = {True: "one draw", False: "draws of their own"}
        yield f"experts start from {drawn[own]}, and under {table} from {drawn[theirs]}"
