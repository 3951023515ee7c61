"""The networks that predictions are derived for, as data: the maps, what each reads, and where its output goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hpxfer.scaling.shape import Shape

# What a map reads: the stream as a block has it, or as the readout has it; what attention averages; or hidden features.
STREAM, LAST, ATTENDED = "stream", "last stream", "attended"
# In a conditioned network a map may also read features of the time, or the condition.
TIME, CONDITION = "time", "condition"
# What outputs go into, beside the stream and hidden features: the logits of attention, the values, gates, the loss.
# Modulations are shifts, scales and gates of a block, and the shifts and scales of what the readout reads.
SCORES, VALUES, GATES, LOSS = "scores", "values", "gates", "loss"
MODULATIONS, LAST_MODULATIONS = "modulations", "last modulations"
KINDS = ("expert", "shared", "dense")  # of an FFN


def hidden(kind: str) -> str:
    """Return the name of the hidden features of an FFN."""
    return f"hidden {kind}"


class Map(NamedTuple):
    """A linear map."""

    role: str
    reads: str
    into: str


@dataclass(frozen=True, kw_only=True)
class Network:
    """A family's network on a path."""

    lookups: tuple[str, ...]  # what the stream starts from
    maps: tuple[Map, ...]
    condition: tuple[tuple[str, str], ...] = ()  # what a condition starts from, and where that goes
    fixed_start: bool = False  # the stream also starts from a table of numbers of order one that is never trained
    normed: bool = True  # what is read of the stream is divided by its size
    residual: bool = True  # branches are added to the stream; else what a block gives is the stream
    stacked: bool = True  # there may be several blocks
    large_eps: bool = False  # Adam's eps may be as large as the gradients

    @property
    def starts(self) -> tuple[str, ...]:
        """The roles that read the data: what stream and condition start from."""
        return (*self.lookups, *(role for role, _ in self.condition))

    def into(self, name: str) -> tuple[Map, ...]:
        """Return the maps whose output goes into something."""
        return tuple(each for each in self.maps if each.into == name)

    def has(self, kind: str) -> bool:
        """Return whether there are FFNs of a kind."""
        return any(each.role == f"{kind}_out" for each in self.maps)

    def ffns(self) -> tuple[str, ...]:
        """Return the kinds of FFN that there are."""
        return tuple(kind for kind in KINDS if self.has(kind))


def gpt_network(shape: Shape, *, gated: bool) -> Network:
    """Return the built-in GPT at the shapes of a path, as far as `shape` tells. `gated` FFNs are SwiGLU."""
    return Network(lookups=("embedding", "position"), maps=_transformer(shape, gated=gated))


def dit_network(shape: Shape, *, gated: bool, learned_positions: bool, classes: bool) -> Network:
    """Return the built-in diffusion transformer in the same way."""
    of_condition = (
        Map("time_out", TIME, CONDITION),
        Map("modulation", CONDITION, MODULATIONS),
        Map("final_modulation", CONDITION, LAST_MODULATIONS),
    )
    return Network(
        lookups=("patch_in", *(("position",) if learned_positions else ())),
        maps=(*of_condition, *_transformer(shape, gated=gated)),
        condition=(("time_in", TIME), *((("label", CONDITION),) if classes else ())),
        fixed_start=not learned_positions,
    )


def _transformer(shape: Shape, *, gated: bool) -> tuple[Map, ...]:
    """Return the maps of attention, FFNs and readout."""
    there = {"expert": shape.num_experts > 0, "shared": shape.num_shared > 0, "dense": shape.dense_width > 0}
    maps = [Map("attn_q", STREAM, SCORES), Map("attn_k", STREAM, SCORES), Map("attn_v", STREAM, VALUES)]
    maps.append(Map("attn_out", ATTENDED, STREAM))
    for kind in (kind for kind in KINDS if there[kind]):
        read = ("in", "gate") if gated else ("in",)
        maps += [*(Map(f"{kind}_{name}", STREAM, hidden(kind)) for name in read)]
        maps.append(Map(f"{kind}_out", hidden(kind), STREAM))
    if there["expert"]:
        maps.append(Map("router", STREAM, GATES))
    return (*maps, Map("readout", LAST, LOSS))


def mlp_network(*, matrices: int, residual: bool, depth: int) -> Network:
    """Return a stack of the family mlp, whose experts have one or two matrices."""
    read = [Map("expert_in", STREAM, hidden("expert"))] if matrices == 2 else []
    out = Map("expert_out", hidden("expert") if matrices == 2 else STREAM, STREAM)
    return Network(
        lookups=("embedding",),
        maps=(Map("router", STREAM, GATES), *read, out, Map("readout", LAST, LOSS)),
        normed=False,
        residual=residual,
        stacked=depth > 1,
        large_eps=True,
    )
