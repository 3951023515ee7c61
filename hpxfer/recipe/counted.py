"""Counted: what a model shows of itself: blocks, experts, heads, and the facts that a recipe states. Imports no torch.

A size shows in one tensor, and `assign` compares it there. A count shows in how many tensors have a role.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError
from hpxfer.recipe.assign import Assigned, RoleTensor
from hpxfer.recipe.known_models import config_of, known_gate
from hpxfer.recipe.modules import class_of, plain_modules, plain_names, unwrapped
from hpxfer.recipe.places import QKV
from hpxfer.recipe.probe import plain_norm
from hpxfer.scaling.roles import ROLES

if TYPE_CHECKING:
    import torch

    from hpxfer.scaling.shape import Shape


# A part of a name, such as q_norm, k_layernorm, query_norm, qk_norm. The norms of low-rank attention are others.
QK_NORM = re.compile(r"(q|k|qk|query|key)_?(layer)?_?norm")
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")


def seen_in(model: torch.nn.Module, found: Assigned) -> dict[str, Any]:
    """Return field of the recipe's `model` -> the value that this model has, without what it does not show."""
    roles = {role for item in found.parameters for role in item.roles}
    norms = [item for item in found.parameters if ROLES[item.roles[0]] == "ones"]
    centered = {item.gain.centered for item in norms if item.gain is not None} | set(_plain_norms(model, found))
    kinds = {"layernorm" if each else "rmsnorm" for each in centered}
    # Those of modulations stand in for the biases of norms.
    modulations = {item.name.rpartition(".")[0] for item in found.parameters if item.role == "modulation"}
    biases = [
        item
        for item in found.parameters
        if item.role == "hidden_bias" and not _is_of_norm(item.name) and item.name.rpartition(".")[0] not in modulations
    ]
    out = {
        "norm": " and ".join(sorted(kinds)) or None,
        "norm_gains": bool(norms),
        "qk_norm": True if _has_qk_norm(model) else False if norms else None,
        "positions": _positions(model, found),
        "ffn": _ffn(model, roles),
        "gate": known_gate(model),
        "tied_embeddings": found.tied_embeddings,
        "biases": bool(biases),
    }
    return {name: value for name, value in out.items() if value is not None}


def _has_qk_norm(model: torch.nn.Module) -> bool:
    """Return whether the name of a module or of a parameter says so. Functions without gains have no names."""
    plain = plain_names(model)
    names = [*plain_modules(model), *(plain(name) for name, _ in model.named_parameters())]
    return any(QK_NORM.fullmatch(part) for name in names for part in name.split("."))


def _plain_norms(model: torch.nn.Module, found: Assigned) -> Iterator[bool]:
    """Yield for each norm without gains whether it takes the mean away."""
    widths = [item.tensor.shape[-1] for item in found.parameters if item.role == "embedding"]
    for name, module in plain_modules(model).items():
        if "norm" in f"{type(module).__name__} {name.rpartition('.')[2]}".lower():
            size = getattr(module, "normalized_shape", widths)
            if size and (centered := plain_norm(module, size[-1])) is not None:
                yield centered


def _is_of_norm(name: str) -> bool:
    """Return whether a bias is that of a norm."""
    parts = name.split(".")[:-1]
    return bool(parts) and ("norm" in parts[-1].lower() or bool(re.fullmatch(r"ln_?(\d|f)?", parts[-1])))


def _positions(model: torch.nn.Module, found: Assigned) -> str | None:
    """Return `learned`, `sincos` for a fixed table, `rope` for rotary positions, and None if nothing shows it."""
    tables = [item for item in found.parameters if item.role == "position"]
    if tables:
        return "sincos" if all(item.is_fixed for item in tables) else "learned"
    config = config_of(model)
    named = any("rotary" in type(module).__name__.lower() for module in plain_modules(model).values())
    return "rope" if named or any(getattr(config, name, None) for name in ("rope_parameters", "rope_theta")) else None


def _ffn(model: torch.nn.Module, roles: set[str]) -> str | None:
    """Return the form of the FFNs. An activation that nothing shows is taken to be the common one."""
    if not any(role.endswith("_in") for role in roles):
        return None
    config = config_of(model)
    act = next((value for name in ACTIVATIONS if isinstance(value := getattr(config, name, None), str)), None)
    if any(role in roles for role in ("expert_gate", "shared_gate", "dense_gate")):
        return "swiglu" if act in (None, "silu", "swish") else f"gated {act}"
    return "gelu" if act is None or act.startswith("gelu") else act


# How configs and modules call a dimension that no tensor shows.
DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks", "n_blocks")
ACTIVE = (
    *("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "num_active_experts", "n_activated_experts"),
    *("num_selected_experts", "moe_topk", "moe_top_k", "moe_k", "moe_router_topk", "top_k_experts"),
)
# In a config these may be about sampling, and anywhere but beside a router about something else.
ACTIVE_OF_MODULES = (*ACTIVE, "top_k", "topk", "num_active", "n_active", "num_selected", "k")
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")
HEAD_DIMS = ("head_dim", "head_size", "d_head", "dim_head")
# Blocks that predict further tokens are no part of the depth: by a word in their names, or by a module beside them.
FURTHER = re.compile(r"(^|[._])(mtp|nextn)([._\d]|$)", re.IGNORECASE)
BESIDE_FURTHER = ("eh_proj", "enorm", "hnorm")
# The start of a role -> the dimension that says that there are such layers.
PARTS = {"expert": "num_experts", "shared": "num_shared", "dense": "dense_width"}


# A dimension, the numbers that agree with the model, the likely one first, and where it shows them.
Shown = tuple[str, Sequence[int], str]


def check_counts(model: torch.nn.Module, found: Assigned, target: Shape) -> None:
    """Raise HpxferError, with one line per dimension, if a count of the model is not that of the target.

    A part of a model, such as a stage of a pipeline, may have fewer blocks. Layers that share their tensors count as
    often as the model names them.
    """
    counted, faults = _Counted(model, found, target), dict[str, None]()
    for name, values, where in (*counted.depth(), *counted.parts(), *counted.experts(), *counted.heads()):
        if (got := getattr(target, name)) not in values:
            right = f"{values[0]}, {where}" if values else where
            fix = f"give {name} {values[0]}" if values else "give that of this model"
            faults[f"target_shape: {name} must be {right}, got {got}; {fix}, or correct the patterns"] = None
    if faults:
        raise HpxferError("\n".join(faults))


class _Counted:
    """The names of the tensors by role, and the modules that hold them."""

    def __init__(self, model: torch.nn.Module, found: Assigned, target: Shape) -> None:
        self.target, self.items = target, found.parameters
        self.what = f"this {class_of(unwrapped(model)).__name__}"
        self.modules = plain_modules(model)
        config = config_of(model)
        text = getattr(config, "get_text_config", None)
        self.config = text(decoder=True) if callable(text) else config
        plain, names = plain_names(model), dict[int, list[str]]()
        for name, tensor in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(tensor), []).append(plain(name))
        self.names = {item.name: names.get(id(item.tensor), [item.name]) for item in self.items}
        roles = {role for item in self.items for role in item.roles}
        self.lists = _lists({name: set(item.roles) for item in self.items for name in self.names[item.name]})
        ends = {"final_norm", "readout"} & roles or any(item.tied for item in self.items)
        self.is_whole = bool({"embedding", "patch_in"} & roles) and bool(ends)

    def depth(self) -> Iterator[Shown]:
        """Yield the depth by the config of a whole model, or else by every way to count the blocks."""
        outs = [item for item in self.items if any(role.endswith("_out") for role in item.roles)]
        attention = self._named(item for item in outs if "attn_out" in item.roles)
        branches = [*self._named(item for item in outs if "dense_out" in item.roles), *self._moe_layers()]
        counts = [len(attention), len(branches), *map(len, self.lists)]
        counts += [len([name for name in each if not self._is_further(name)]) for each in (attention, branches)]
        counts += [len([name for name in each if not self._is_further(f"{name}.")]) for each in self.lists]
        # Of tensors that hold all layers, the first dimension counts them.
        counts += [item.tensor.shape[0] for item in outs if "attn_out" in item.roles and item.tensor.ndim > 2]
        counts = [count for count in counts if count]
        by_config = _first_number(self.config, DEPTH)
        if by_config:
            yield (
                "depth",
                [by_config, *([] if self.is_whole else counts)],
                f"the blocks of {self.what}: its config says",
            )
        elif counts and (self.is_whole or self.target.depth <= min(counts)):
            where = f"the blocks of {self.what}: {counts[0]} of its tensors end a branch of a block"
            yield "depth", counts, where

    def parts(self) -> Iterator[Shown]:
        """Yield that the model has none of a kind of FFN."""
        kinds = {role.partition("_")[0] for item in self.items for role in item.roles}
        for kind, name in PARTS.items():
            if self.is_whole and kinds & PARTS.keys() and kind not in kinds:
                yield name, [0], f"as no tensor of {self.what} has a role {kind}_..."

    def experts(self) -> Iterator[Shown]:
        """Yield the number of experts in layers whose experts are single tensors, and how many a token uses."""
        routers = [item for item in self.items if item.role == "router" and 1 not in item.tensor.shape]
        for kind, total in (("expert", self.target.num_experts), ("shared", self.target.num_shared)):
            if total < 2 or not self.is_whole or _is_distributed():
                continue
            single = self._single(f"{kind}_out")
            layers = Counter(self._without_expert(name) for name in single)
            if len(layers) == len(single) and routers:  # no number in the names counts experts
                layers = Counter({name: len(single) // len(self._named(routers)) for name in single[:1]})
            wrong = [(layer, number) for layer, number in layers.items() if number != total]
            for layer, number in wrong[:1]:
                yield PARTS[kind], [number], f"the tensors {layer} that hold one each"
        # The routers say how many they choose, or else the config does.
        seen = dict[str, int]()
        for item in routers:
            path = item.name.rpartition(".")[0]
            for at in (path, path.rpartition(".")[0]):
                if (chosen := _first_number(self.modules.get(at), ACTIVE_OF_MODULES)) is not None:
                    seen.setdefault(f"as {at or 'the model'} says", chosen)
                    break
        if not seen and (chosen := _first_number(self.config, ACTIVE)) is not None:
            seen["as its config says"] = chosen
        if seen and self.target.num_active:
            yield "num_active", list(seen.values()), next(iter(seen))

    def heads(self) -> Iterator[Shown]:
        """Yield the size and the number of the heads of attention.

        Where nothing states the size of a head, it follows from the number of heads and their features.
        Low-rank attention has heads of several sizes, which no shape says: only their number is compared.
        """
        size = self.target.head_dim
        attention = [item for item in self.items if any(role.startswith("attn_") for role in item.roles)]
        as_stated = f"as the attention of {self.what} says"
        if not size:
            return
        if any(item.base_fan_in for item in attention) or hasattr(self.config, "kv_lora_rank"):
            stated = [number for _, number in self._stated_of(attention, HEADS)]
            if self.target.num_heads and stated:
                yield "num_heads", stated, as_stated
            return
        sizes = {number: "" for _, number in self._stated_of(attention, HEAD_DIMS)}
        # Tensor parallelism shards the inputs of attn_out. Modules may then state the heads of one rank.
        if not sizes and not any(_is_sharded_by_inputs(item.tensor) for item in attention):
            # Values may have heads of another size than queries.
            ends = [item for role in ("attn_out", "attn_q") for item in attention if item.role == role]
            for item, heads in self._stated_of([item for item in ends if item.tensor.ndim == 2], HEADS):
                features = item.tensor.numel() // self.target.width
                if features % heads == 0:
                    sizes.setdefault(features // heads, f": {heads} heads have {features} features")
        if sizes and size not in sizes:
            yield "head_dim", list(sizes), as_stated + next(iter(sizes.values()))
            return
        features_of = {
            role: [item.tensor.numel() // self.target.width for item in attention if item.role == role]
            for role in ("attn_q", "attn_k", QKV)
        }
        # A gate of the output may be part of the queries' matrix.
        for role, name, times in (("attn_q", "num_heads", (1, 2)), ("attn_k", "kv_heads", (1,))):
            rows = features_of[role]
            if rows and all(number % size for number in rows):
                yield "head_dim", [], f"a divisor of the {rows[0]} features of {role}"
            elif rows and getattr(self.target, name):
                values = [number // (size * by) for by in times for number in rows if number % (size * by) == 0]
                yield name, values, f"as {role} has {rows[0]} features"
        joined, features = features_of[QKV], (self.target.query_heads + 2 * self.target.key_heads) * size
        if joined and (self.target.num_heads or self.target.kv_heads) and features not in joined:
            name = "num_heads" if self.target.num_heads else "kv_heads"
            yield name, [], f"such that num_heads and kv_heads give the {joined[0]} features of {QKV}"

    def _named(self, items: Iterable[RoleTensor]) -> list[str]:
        return [name for item in items for name in self.names[item.name]]

    def _single(self, role: str) -> list[str]:
        """Return the names of the tensors that hold one expert."""
        width = self.target.shared_width if role.startswith("shared") else self.target.expert_width
        one = self.target.width * width
        return self._named(item for item in self.items if item.role == role and item.tensor.numel() == one)

    def _moe_layers(self) -> list[str]:
        """Return one name per MoE layer."""
        names = self._named(item for item in self.items if "expert_out" in item.roles)
        return list(dict.fromkeys(self._without_expert(name) for name in names))

    def _without_expert(self, name: str) -> str:
        """Return the name with # for the number of the expert: that of `weight3`, or else the innermost part.

        A number that counts blocks counts no experts.
        """
        *path, last = name.split(".")
        if re.fullmatch(r"(weight|bias)\d+", last):
            return ".".join([*path, last.rstrip("0123456789") + "#"])
        at = next((i for i in reversed(range(len(path))) if path[i].isdigit()), None)
        if at is None or any(".".join(path[: at + 1]) in members for members in self.lists):
            return name
        return ".".join([*path[:at], "#", *path[at + 1 :], last])

    def _is_further(self, name: str) -> bool:
        if FURTHER.search(name):
            return True
        parts = name.split(".")
        above = [".".join(parts[:end]) for end in range(1, len(parts))]
        return any(f"{at}.{beside}" in self.modules for at in above for beside in BESIDE_FURTHER)

    def _stated_of(self, items: Sequence[RoleTensor], attributes: Sequence[str]) -> list[tuple[RoleTensor, int]]:
        """Return what the modules of these tensors state, or else the config of all of them."""
        found = [(item, number) for item in items if (number := self._stated(item, attributes)) is not None]
        by_config = _first_number(self.config, attributes)
        return found or ([] if by_config is None else [(item, by_config) for item in items])

    def _stated(self, item: RoleTensor, attributes: Sequence[str]) -> int | None:
        """Return what the innermost module above a tensor says that has one of these attributes."""
        parts = item.name.split(".")[:-1]
        above = (self.modules.get(".".join(parts[:end])) for end in range(len(parts), 0, -1))
        return next((number for module in above if (number := _first_number(module, attributes)) is not None), None)


def _lists(roles_of: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the blocks of each numbered list of blocks, by the outermost number in the names of their tensors.

    A list whose members hold experts and nothing else is no list of blocks.
    """
    lists: dict[str, dict[str, set[str]]] = {}
    for name, roles in roles_of.items():
        parts = name.split(".")[:-1]
        at = next((i for i, part in enumerate(parts) if part[-1:].isdigit()), None)
        if at is not None:
            of_list = ".".join([*parts[:at], parts[at].rstrip("0123456789")])
            lists.setdefault(of_list, {}).setdefault(".".join(parts[: at + 1]), set()).update(roles)
    return [
        list(members)
        for members in lists.values()
        if all(any(role.endswith("_out") for role in roles) for roles in members.values())
        and any(not role.startswith(("expert_", "shared_")) for roles in members.values() for role in roles)
    ]


def _first_number(holder: Any, names: Sequence[str]) -> int | None:
    """Return the first of these attributes that is a whole number above 0."""
    values = (_value(holder, name) for name in names)
    return next((value for value in values if isinstance(value, int) and value is not True and value > 0), None)


def _value(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except RuntimeError:  # a config of transformers says so of what differs between layers
        return None


def _is_sharded_by_inputs(tensor: torch.Tensor) -> bool:
    """Return whether a DTensor is sharded in its second dimension. FSDP2 shards the first one."""
    return any(getattr(placement, "dim", 0) == 1 for placement in getattr(tensor, "placements", ()))


def _is_distributed() -> bool:
    """Return whether several processes train, each of which may hold a part of the experts."""
    import torch

    return torch.distributed.is_available() and torch.distributed.is_initialized()
