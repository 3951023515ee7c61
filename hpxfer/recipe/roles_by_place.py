"""Roles by place: the role of each tensor, by where it lies, what it is called there and what lies beside it. Pure.

A word is looked up in the table of its place. What follows then from the words beside it: attention needs a query, a
key and a value, an FFN has one matrix of each kind, and the final norm is the one outside the blocks. A name that this
leaves open has no role.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from hpxfer.recipe.conditioned import conditioned
from hpxfer.recipe.places import (
    AT_THE_END,
    EITHER,
    EMBEDDINGS,
    EXPERTS,
    FFN_IN_BLOCK,
    FINAL_NORMS,
    FUSED,
    GATE,
    HEADS,
    IN,
    IN_ATTENTION,
    IN_BLOCK,
    IN_FFN,
    IN_HEAD,
    IN_ROUTER,
    NORM,
    NUMBERED,
    NUMBERS,
    OUT,
    OUTSIDE,
    QKV,
    ROUTER_BIASES,
    ROUTERS,
    SHARED_GATES,
    Place,
    Words,
    places_of,
)
from hpxfer.scaling.numbers import JOIN

Size = tuple[int, ...] | None  # None: it is not known
Sizes = Mapping[str, Size]
Found = Iterator[tuple[str, "Proposal"]]

# Of matrices that are numbered alone, Llama's order is the common one. Others read w3 as the output.
BY_NUMBER = "by the common order of w1, w2 and w3, as no size says which is the output"
BY_PLACE = "by its place, as the only norm outside the blocks"
BY_STACK = "by its name alone, in other blocks than the main ones"
BY_SECOND = "by its name alone, beside another of this role"
# Outside attention: where a router may lie.
AROUND_EXPERTS = ("block", "dense", "moe", "other")
WITHOUT_HIDDEN_BIAS = ("router", "embedding", "position", "readout")


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A role, and in words why it is a guess that should be looked at; None if it is the common meaning of a name."""

    role: str
    guess: str | None = None


def proposals(sizes: Sizes) -> dict[str, Proposal]:
    """Return name -> proposal for the tensors of a model, in their order. The others have no role.

    A size that is not known leaves more names without a role, or makes their role a guess.
    """
    places = places_of(sizes)
    weights = {name: at for name, at in places.items() if not at.is_bias and at.kind != "foreign"}
    holders, branches = dict[str, dict[str, Place]](), dict[str, dict[str, Place]]()
    for name, at in weights.items():
        holders.setdefault(at.holder, {})[name] = at
        branches.setdefault(at.branch, {})[name] = at
    around = {path for at in weights.values() if (path := _around_experts(at)) is not None}
    of_condition = {name: Proposal(role=role, guess=why) for name, role, why in conditioned(places)}
    out: dict[str, Proposal] = {}
    for beside in branches.values():
        out.update(_attention(beside))
    for holder, beside in holders.items():
        routers = dict(_routers(beside, sizes, routes=holder in around))
        rest = {name: at for name, at in beside.items() if name not in routers and name not in out}
        out.update(routers)
        out.update(_feed_forward(rest, sizes, routes=bool(routers) or holder in around))
    out.update((name, Proposal(role="norm")) for name, at in weights.items() if _is_norm_of_block(at))
    out.update(_outside({name: at for name, at in weights.items() if at.kind == "outside"}))
    widths = _widths({**out, **of_condition}, sizes)
    out = {name: found for name, found in out.items() if _fits(found.role, sizes[name], widths)}
    out.update(dict(_stacked_experts(weights, out, sizes, widths)))
    out.update(_biases(places, out))
    out.update(of_condition)
    guessed = {name: found.guess or (None if places[name].is_main else BY_STACK) for name, found in out.items()}
    return {name: replace(out[name], guess=guessed[name]) for name in sizes if name in out}


def _widths(found: Mapping[str, Proposal], sizes: Sizes) -> set[int]:
    """Return the widths that the embeddings, of tokens or of patches, say the model has."""
    at = {"embedding": -1, "patch_in": 0}
    return {size[at[one.role]] for name, one in found.items() if one.role in at and (size := sizes[name])}


def _around_experts(at: Place) -> str | None:
    """Return the module that holds the experts or the router of which a tensor is a part, or None if it is of none."""
    if at.kind == "router":
        return at.holder.rpartition(".")[0]
    if at.word == "router" and at.kind in AROUND_EXPERTS:
        return at.holder
    if at.kind != "expert":
        return None
    parts, start = at.holder.split("."), at.block.count(".") + 1 if at.block else 0
    first = next(i for i, part in enumerate(parts) if i >= start and EXPERTS.fullmatch(part))
    return ".".join(parts[:first])


def _attention(beside: Mapping[str, Place]) -> Found:
    """Yield the roles in attention: none unless it has a query, a key, a value, and at most one output."""
    found = {}
    for name, at in beside.items():
        table = IN_ATTENTION if at.kind == "attention" else IN_BLOCK if at.kind == "block" else {}
        if at.word in table:
            found[name] = table[at.word]
        elif at.kind == "attention" and name.endswith("in_proj_weight"):
            found[name] = QKV  # of torch.nn.MultiheadAttention
    has = [role for roles in found.values() for role in roles.split(JOIN)]
    if {"attn_q", "attn_k", "attn_v"} <= set(has) and has.count("attn_out") <= 1:
        yield from ((name, Proposal(role=role)) for name, role in found.items())


def _routers(beside: Mapping[str, Place], sizes: Sizes, *, routes: bool) -> Found:
    """Yield the routers. A matrix called `gate` is one beside experts only."""
    words = {at.word for at in beside.values()}
    is_ffn = {IN, OUT} <= {IN_FFN.get(word) for word in words}
    stacked = any(len(sizes[name] or ()) > 2 for name in beside)
    for name, at in beside.items():
        if name.endswith((".scale", ".gamma")):  # a gain, as in Gemma 4
            found = False
        elif at.kind == "router":
            found = at.word in IN_ROUTER
        elif at.kind == "shared":  # Megatron's
            found = name.endswith("gate_weight") and "linear_fc1" in words
        elif at.kind not in AROUND_EXPERTS:
            found = False
        elif at.word == "gate" and is_ffn:  # that of a SwiGLU, or of experts in stacked tensors
            found = stacked and len(sizes[name] or ()) == 2
        else:
            by_word = routes or at.kind == "moe" or (at.word == "router" and at.kind != "other")
            found = at.word in SHARED_GATES or (at.word in ROUTERS and by_word)
        if found:
            yield name, Proposal(role="router")


def _feed_forward(beside: Mapping[str, Place], sizes: Sizes, *, routes: bool) -> Found:
    """Yield the roles of the matrices of an FFN: none unless it has at most one of each kind, of sizes that fit."""
    inside = {name: at for name, at in beside.items() if at.kind in ("block", "dense", "moe", "expert", "shared")}
    inside = {n: at for n, at in inside.items() if at.kind != "block" or at.word in FFN_IN_BLOCK or at.word in NUMBERS}
    parts = _parts({at.word for at in inside.values()})
    # Megatron has the experts of a layer side by side, as linear_fc1.weight0. One of them shows the sizes.
    size_of = {parts[at.word]: sizes[name] for name, at in inside.items() if at.word in parts}
    flat = any(_is_flat(at, sizes[name]) for name, at in inside.items())
    fits = _fit_each_other(size_of)
    if fits is False and not flat:
        return
    doubled, is_open = _is_doubled(size_of), {"w1", "w2", "w3"} <= set(parts) and not fits
    for name, at in inside.items():
        part, kind = parts.get(at.word), _kind_of_ffn(at, sizes[name], routes=routes)
        if part is None or kind is None or (part == IN and doubled is None and at.word in EITHER):
            continue
        each = (FUSED if part == IN and doubled else part).split(JOIN)
        role = JOIN.join(f"{kind}_{one}" for one in each)
        yield name, Proposal(role=role, guess=BY_NUMBER if is_open else None)


def _parts(words: set[str]) -> Words:
    """Return word -> kind of matrix for the words in one FFN, or nothing if they leave open which is which."""
    numbered = words & NUMBERS
    rows = [row for row in NUMBERED if set(row) == numbered]
    if numbered and not rows:
        return {}
    table = {**IN_FFN, **(rows[0] if rows else {})}
    parts = {word: table[word] for word in words if word in table}
    each = [one for part in parts.values() for one in part.split(JOIN)]
    if len(set(each)) < len(each):
        return {}
    # Beside a matrix that may hold two, a `gate` may be a router.
    is_open = "gate" in parts and not any(part == IN and word not in EITHER for word, part in parts.items())
    return {} if is_open else parts


def _kind_of_ffn(at: Place, size: Size, *, routes: bool) -> str | None:
    """Return which FFN a matrix is of, or None if it may be of all experts or of a dense FFN beside them."""
    if at.kind == "moe" or (at.kind == "dense" and routes):
        if size is None or (at.kind == "moe" and len(size) < 3):
            return None
        return "expert" if len(size) > 2 else "dense"
    return "dense" if at.kind == "block" else at.kind


def _is_flat(at: Place, size: Size) -> bool:
    """Return whether all experts of a layer may lie below each other. Input and output then have one size."""
    numbered = any(part.isdecimal() for part in at.holder.removeprefix(at.block).split("."))
    return at.kind == "expert" and not numbered and len(size or ()) < 3


def _is_doubled(size_of: Mapping[str, Size]) -> bool | None:
    """Return whether the input matrix is two, as a SwiGLU's may be; None if no size says it."""
    first, last = size_of.get(IN), size_of.get(OUT)
    if GATE in size_of:
        return False
    return None if first is None or last is None else math.prod(first) == 2 * math.prod(last)


def _fit_each_other(size_of: Mapping[str, Size]) -> bool | None:
    """Return whether sizes are those of an FFN, whose output lies on its side; None if they do not tell."""
    into, gate, out = (size_of.get(part) for part in (IN, GATE, OUT))
    if into is not None and gate is not None and into != gate:
        return False
    first = gate if into is None else into
    if first is None or out is None or len(first) < 2 or first[-1] == first[-2]:
        return None
    return first != out


def _is_norm_of_block(at: Place) -> bool:
    return at.kind not in ("outside", "other", "router") and NORM.fullmatch(at.word) is not None


def _outside(around: Mapping[str, Place]) -> Found:
    """Yield the roles of what lies outside the blocks. A second word for one of them is a guess."""
    first: dict[str, str] = {}
    for name, at in around.items():
        role = OUTSIDE.get(at.word)
        if at.word in IN_HEAD and at.path and set(at.path) <= HEADS:
            role = "readout"
        elif not set(at.path) <= (EMBEDDINGS if role != "readout" else set()):
            role = None
        if role is not None:
            # T5 calls one tensor by two words, of which one is `shared`.
            word = first.setdefault(role, at.word) if at.word != "shared" else at.word
            yield name, Proposal(role=role, guess=None if word == at.word else BY_SECOND)
    yield from _final_norm({name: at for name, at in around.items() if NORM.fullmatch(at.word)})


def _final_norm(norms: Mapping[str, Place]) -> Found:
    """Yield the last norm of a model, which lies outside the blocks and not at the embeddings.

    Several that could be the last one are left without a role.
    """
    norms = {name: at for name, at in norms.items() if "emb" not in at.word and set(at.path) <= AT_THE_END}
    found = [name for name, at in norms.items() if at.word in FINAL_NORMS] or list(norms)
    if len(found) == 1:
        (name,) = found
        known = norms[name].word in FINAL_NORMS and not norms[name].path
        yield name, Proposal(role="final_norm", guess=None if known else BY_PLACE)


def _fits(role: str, size: Size, widths: Collection[int]) -> bool:
    """Return whether a tensor of this size can have its role: a gain is a vector, or one per head.

    All else is a matrix, but a router of OLMo-core, which is flat: the width times the number of experts.
    """
    if size is None:
        return True
    if role == "router" and len(size) == 1:
        return all(size[0] > width and size[0] % width == 0 for width in widths)
    return len(size) <= 2 if role.endswith("norm") else len(size) >= 2


def _biases(places: Mapping[str, Place], out: Mapping[str, Proposal]) -> Found:
    """Yield the biases of matrices and norms with a role. A router's own has none: a rule may move it."""
    of = {(places[name].holder, places[name].word): found.role for name, found in out.items()}
    for name, at in places.items():
        if name.rpartition(".")[2] in ROUTER_BIASES and at.kind not in ("outside", "attention"):
            yield name, Proposal(role="router_bias")
        elif at.kind != "foreign":
            is_sink = at.kind == "attention" and at.word == "sinks"
            if is_sink or (at.is_bias and of.get((at.holder, at.word), "router") not in WITHOUT_HIDDEN_BIAS):
                yield name, Proposal(role="hidden_bias")


BY_SIZE = "by its size, as all experts of a layer in one tensor"
BY_ORDER = f"{BY_SIZE}, and by its place in the order of the tensors"


def _stacked_experts(
    weights: Mapping[str, Place], known: Mapping[str, Proposal], sizes: Sizes, widths: Collection[int]
) -> Found:
    """Yield the experts of blocks in which no name says which they are.

    They are the tensors of E x width x h or E x h x width in a module of experts, or beside a router of E experts: an
    input and an output, or an input and a gate in one of twice the size. Of two equal sizes the first is the input.
    Where h is the width, and one tensor looks like the other, nothing is said.
    """
    if len(widths) != 1:
        return
    (width,) = widths
    routers: dict[str, set[int]] = {}
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, at in weights.items():
        size, role = sizes[name] or (), known[name].role if name in known else "expert_"
        if role == "router":
            routers.setdefault(at.block, set()).update(size)
        is_inside = at.kind not in ("attention", "outside")
        if is_inside and len(size) == 3 and width in size[1:] and role.startswith("expert_"):
            found.setdefault(at.block, {})[name] = size
    for block, tensors in found.items():
        if tensors.keys().isdisjoint(known):
            yield from _of_layer(
                {
                    name: size[1:]
                    for name, size in tensors.items()
                    if weights[name].kind in ("moe", "expert") or size[0] in routers.get(block, ())
                },
                width,
            )


def _of_layer(found: Mapping[str, tuple[int, ...]], width: int) -> Found:
    """Yield the roles of the experts of a layer, by the two dimensions of each tensor that are not their number."""
    hidden, counts = {name: math.prod(size) // width for name, size in found.items()}, Counter(found.values())
    roles, why = dict[str, str](), BY_SIZE
    if len(found) == 2:
        (first, last), (low, high) = found, sorted(found, key=lambda name: hidden[name])
        if hidden[high] == 2 * hidden[low]:
            roles = {high: "expert_in+expert_gate", low: "expert_out"}
        elif found[first] == found[last][::-1] != found[last]:
            roles, why = {first: "expert_in", last: "expert_out"}, BY_ORDER
    elif len(found) == 3 and len(set(hidden.values())) == 1 and len(counts) == 2:
        first, second, last = sorted(found, key=lambda name: -counts[found[name]])
        if found[first] == found[last][::-1]:
            roles = {first: "expert_gate", second: "expert_in", last: "expert_out"}
    yield from ((name, Proposal(role=role, guess=why)) for name, role in roles.items())
