"""Ranks: the processes that train one stack together. They are SPMD: all run the same trainer, on other lanes.

    gradients    each rank sums its own lanes, contiguous ones. It sends every lane's sum by itself to the owners of the
                 matrices, and an owner adds all lanes in order. So the bits are those of one process. (An all-reduce
                 adds in an order of its own.)
    optimizer    a matrix has one owner, which holds its moments, updates it, and sends it to the others
    the rest     losses, loads and router biases are the same everywhere; rank 0 decides what depends on the clock

torch.distributed moves all tensors: NCCL on GPUs, gloo on CPUs. A rank that waits for another longer than `timeout_s`
says which one it waits for.

Letters: R ranks, K trials.
"""

from __future__ import annotations

import atexit
import itertools
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hpxfer.errors import HpxferError, RankLost
from hpxfer.model.flat import FlatLayout
from hpxfer.trial import Team

_LOOPBACK = "127.0.0.1"


class Ranks:
    """One process of a stack. Alone, it has all lanes and owns all matrices, and no method waits for anything."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world

    @property
    def is_first(self) -> bool:
        """Whether this process reports, writes checkpoints and decides."""
        return self.rank == 0

    def lanes(self, num_lanes: int) -> range:
        """Return the lanes of this rank. The ranks divide them."""
        own = num_lanes // self.world
        return range(self.rank * own, (self.rank + 1) * own)

    def bounds(self, layout: FlatLayout) -> list[int]:
        """Return where the shards of the flat vector begin and end, R + 1 numbers: whole matrices, evenly."""
        return shard_bounds(layout.copy_sizes, self.world)

    def at(self, what: str) -> None:
        """Note what this rank does next, for the others that may have to wait for it."""

    def agree(self, flag: bool) -> bool:
        """Return the flag of rank 0."""
        return flag

    def all(self, flag: bool) -> bool:
        """Return whether the flag is set on all ranks."""
        return flag

    def names(self, of_first: Sequence[str]) -> Sequence[str]:
        """Return the names that rank 0 has."""
        return of_first

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add a tensor over the ranks in place: integers, or numbers that are zero on all ranks but one."""
        return tensor

    def joined(self, tensor: Tensor) -> Tensor:
        """Return the ranks' tensors of equal size along dimension 1, in order of the ranks."""
        return tensor

    def to_owners(self, lane: Tensor, bounds: Sequence[int]) -> Tensor:
        """Return [R, own shard] from the ranks' vectors: of each its part that this rank owns."""
        raise NotImplementedError("one process keeps its own sums")

    def share_(self, flat: Tensor, bounds: Sequence[int]) -> None:
        """Write every owner's shard of a vector to all ranks."""

    def whole(self, shard: Tensor, bounds: Sequence[int]) -> Tensor:
        """Return the whole vector of which this rank has a shard, in the host's memory."""
        return shard


ALONE = Ranks()


class TeamRanks(Ranks):
    """One of several processes, through torch.distributed. The default process group is theirs."""

    def __init__(self, team: Team, device: torch.device, facts: Mapping[str, Any]) -> None:
        super().__init__(team.rank, team.world)
        self._timeout_s = team.timeout_s
        timeout = timedelta(seconds=team.timeout_s)
        atexit.register(self.close)
        host, _, port = team.address.rpartition(":")
        if host == _LOOPBACK:  # gloo asks for the address of the machine's name otherwise
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        with self._waiting("the start"):
            self._store = dist.TCPStore(host, int(port), None, False, timeout)  # type: ignore[attr-defined]
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=self._store, rank=team.rank, world_size=team.world, timeout=timeout)
            # Flags and names are no business of a GPU.
            self._host: Any = dist.group.WORLD if backend == "gloo" else dist.new_group(backend="gloo", timeout=timeout)
        self._require_equal(facts)

    def close(self) -> None:
        """Leave the others.

        A thread of gloo that still holds a tensor while Python ends aborts the process. The threads of a group end with
        the last reference to it.
        """
        self._host = None
        with suppress(RuntimeError):
            dist.destroy_process_group()

    def at(self, what: str) -> None:
        with suppress(RuntimeError):  # of rank 0 that is gone, which the next call finds
            self._store.set(_key(self.rank), f"{what}|{socket.gethostname()}|{os.getpid()}")

    def agree(self, flag: bool) -> bool:
        said = torch.tensor([int(flag)])
        with self._waiting("a decision"):
            dist.broadcast(said, 0, group=self._host)
        return bool(said.item())

    def all(self, flag: bool) -> bool:
        said = torch.tensor([int(flag)])
        with self._waiting("a decision"):
            dist.all_reduce(said, dist.ReduceOp.MIN, group=self._host)
        return bool(said.item())

    def names(self, of_first: Sequence[str]) -> Sequence[str]:
        said: list[Any] = [list(of_first) if self.is_first else None]
        with self._waiting("a decision"):
            dist.broadcast_object_list(said, 0, group=self._host)
        out: list[str] = said[0]
        return out

    def sum_(self, tensor: Tensor) -> Tensor:
        with self._waiting("a sum"):
            dist.all_reduce(tensor)
        return tensor

    def joined(self, tensor: Tensor) -> Tensor:
        own = tensor.contiguous()
        parts = [torch.empty_like(own) for _ in range(self.world)]
        with self._waiting("the losses"):
            dist.all_gather(parts, own)
        return torch.cat(parts, dim=1)

    def to_owners(self, lane: Tensor, bounds: Sequence[int]) -> Tensor:
        sizes = [high - low for low, high in itertools.pairwise(bounds)]
        received = lane.new_empty(self.world, sizes[self.rank])
        with self._waiting("the gradients"):
            dist.all_to_all_single(received.view(-1), lane, [sizes[self.rank]] * self.world, sizes)
        return received

    def share_(self, flat: Tensor, bounds: Sequence[int]) -> None:
        with self._waiting("the parameters"):
            for owner, (low, high) in enumerate(itertools.pairwise(bounds)):
                if high > low:
                    dist.broadcast(flat[low:high], owner)

    def whole(self, shard: Tensor, bounds: Sequence[int]) -> Tensor:
        out = torch.empty(bounds[-1], dtype=shard.dtype)
        with self._waiting("the moments"):
            for owner, (low, high) in enumerate(itertools.pairwise(bounds)):
                if high > low:
                    part = shard if owner == self.rank else shard.new_empty(high - low)
                    dist.broadcast(part, owner)
                    out[low:high] = part
        return out

    def _require_equal(self, facts: Mapping[str, Any]) -> None:
        """Raise HpxferError unless all ranks have the same versions and kind of machine."""
        found: list[Any] = [None] * self.world
        with self._waiting("the start"):
            dist.all_gather_object(found, {"host": socket.gethostname(), **facts}, group=self._host)
        for rank, other in enumerate(found):
            for name in facts:
                if other[name] != found[0][name]:
                    raise HpxferError(
                        f"ranks: all ranks of a stack must have the same {name}, got {other[name]} on rank {rank} "
                        f"({other['host']}) and {found[0][name]} on rank 0 ({found[0]['host']}); install the same "
                        "versions on every node, and name nodes of one kind"
                    )

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """Turn an error of torch.distributed into one that names the rank that was waited for."""
        began = time.monotonic()
        try:
            yield
        except (RuntimeError, dist.DistError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            waited = time.monotonic() - began
            late = f"after {waited:.0f} s" if waited >= 0.9 * self._timeout_s else "at once, its connection is gone"
            raise RankLost(f"rank {self.rank} waited for {what} and gave up {late}: {self._behind()}") from error

    def _behind(self) -> str:
        """Return what the other ranks noted last, e.g. `rank 2 (node-7, pid 12) is at step 41`."""
        said = []
        for rank in range(self.world):
            if rank == self.rank:
                continue
            text = "has not said where it is"
            with suppress(Exception):  # the store is gone with rank 0
                if self._store.check([_key(rank)]):
                    what, host, pid = self._store.get(_key(rank)).decode().split("|")
                    text = f"({host}, pid {pid}) is at {what}"
            said.append(f"rank {rank} {text}")
        return "; ".join(said)


_joined: dict[Team, TeamRanks] = {}


def joined(team: Team | None, device: torch.device, facts: Mapping[str, Any]) -> Ranks:
    """Return the ranks of a team, or one process alone. A process joins a team once, for all its stacks.

    `facts` must be equal on all ranks: what the bits of a training depend on beside its trials.
    """
    if team is None or team.world == 1:
        return ALONE
    if team not in _joined:
        for old in _joined.values():
            old.close()
        _joined.clear()
        _joined[team] = TeamRanks(team, device, facts)
    return _joined[team]


def open_store(world: int, *, host: str = _LOOPBACK, timeout_s: float) -> tuple[Any, str]:
    """Return a store for the ranks of a stack, which lives as long as this object, and its address."""
    store = dist.TCPStore(host, 0, world, True, timedelta(seconds=timeout_s), wait_for_workers=False)  # type: ignore[attr-defined]
    return store, f"{host}:{store.port}"


def shard_bounds(sizes: Sequence[int], world: int) -> list[int]:
    """Return where the shards of consecutive matrices begin and end, so that the largest shard is as small as possible.

    `sizes` are those of the matrices in the order of the flat vector.
    """
    ends = list(itertools.accumulate(sizes, initial=0))
    low, high = max(sizes, default=0), ends[-1]
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _count(sizes, middle) <= world else (middle + 1, high)
    bounds, filled = [0], 0
    for index, size in enumerate(sizes):
        if filled + size > low:
            bounds.append(ends[index])
            filled = 0
        filled += size
    return [*bounds, *[ends[-1]] * (world + 1 - len(bounds))]


def _count(sizes: Sequence[int], most: int) -> int:
    """Return how many shards of at most this size the matrices make."""
    shards, filled = 1, 0
    for size in sizes:
        if filled + size > most:
            shards, filled = shards + 1, 0
        filled += size
    return shards


def _key(rank: int) -> str:
    return f"hpxfer/at/{rank}"
