"""Propose roles: a guess of the role of each tensor of a torch model, by its architecture or by names alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from hpxfer.host.output import aligned
from hpxfer.recipe.assign import BALANCED, names_of_each
from hpxfer.recipe.known_models import QKV, Pairs, known_model
from hpxfer.recipe.match import JOIN, Roles, pairs_of
from hpxfer.recipe.wrappers import plain_names

if TYPE_CHECKING:
    import torch

HEADER = ("pattern", "role", "tensors", "for example", "size")
Sizes = dict[str, tuple[int, ...]]

# Common names of tensors. Routers come before FFNs, and shared experts before experts.
COMMON: Pairs = (
    *((f"*{name}.weight", "embedding") for name in ("wte", "embed_tokens", "tok_embeddings", "embed_in")),
    *((f"*{name}.weight", "embedding") for name in ("token_embedding", "token_embeddings", "tok_emb", "embedder")),
    *((f"*{name}.weight", "position") for name in ("wpe", "embed_positions", "position_embedding", "pos_emb")),
    *((f"*{name}.weight", "position") for name in ("position_embeddings", "pos_embedding")),
    *((f"*{name}", "router_bias") for name in ("e_score_correction_bias", ".router_bias", ".expert_bias")),
    *((f"{model}norm.weight", "final_norm") for model in ("", "model.", "transformer.")),
    *((f"{model}ln_f.weight", "final_norm") for model in ("", "model.", "transformer.")),
    *((f"*{name}.weight", "final_norm") for name in ("final_norm", "final_layernorm", "final_layer_norm")),
    *((f"*.{name}.weight", "norm") for name in ("*norm", "*norm?", "*norm_?", "ln?", "ln_?")),
    *((f"*{name}.bias", "hidden_bias") for name in ("norm", "norm?", "norm_?", "ln?", "ln_?")),
    *((f"*{name}.weight", QKV) for name in ("c_attn", ".qkv", "qkv_proj", "query_key_value", "Wqkv")),
    *((f"*.{name}.weight", "attn_q") for name in ("q_proj", "wq", "query", "to_q", "q")),
    *((f"*.{name}.weight", "attn_k") for name in ("k_proj", "wk", "key", "to_k", "k")),
    *((f"*.{name}.weight", "attn_v") for name in ("v_proj", "wv", "value", "to_v", "v")),
    *((f"*.{name}.weight", "attn_out") for name in ("o_proj", "wo", "to_out", "*attn.out_proj", "*attn.c_proj")),
    *((f"*.{name}.weight", "attn_out") for name in ("*attn.out", "*attention.out", "*attention.dense", "*attn.proj")),
    # Low-rank attention (MLA). The second matrices read the low rank: a recipe asks for their fan-in at the base.
    *((f"*.{name}_proj.weight", "attn_q") for name in ("q_a", "q_b")),
    *((f"*.{name}.weight", "attn_k+attn_v") for name in ("kv_a_proj_with_mqa", "kv_b_proj")),
    ("*attn.sinks", "hidden_bias"),
    *((f"*.{name}.weight", "router") for name in ("router", "router.layer", "router.gate", "gate.wg")),
    # The gate of a shared expert reads the width and gives one number.
    *((f"*.{name}_gate.weight", "router") for name in ("shared_expert", "shared_experts")),
)
IN_FFN: dict[str, tuple[str, ...]] = {
    "gate": ("gate_proj", "w_gate", "gate"),
    "in": ("up_proj", "w_up", "up", "c_fc", "fc1", "w_in", "fc_in"),
    "out": ("down_proj", "w_down", "down", "c_proj", "fc2", "w_out", "fc_out"),
}
# w1 goes through the activation: it is the gate if there is a w3, and the only input matrix if there is none.
NUMBERED = {True: {"w1": "gate", "w3": "in", "w2": "out"}, False: {"w1": "in", "w2": "out"}}
# Modules that hold an FFN, by kind. The dense FFN comes last: its pattern matches all.
FFNS: Pairs = (("*.shared*", "shared"), ("*experts*", "expert"), ("*", "dense"))
HEADS: Pairs = tuple(
    (pattern, "readout")
    for name in ("lm_head", "head", "output", "unembed", "readout", "embed_out")
    for pattern in (f"{name}.weight", f"*.{name}.weight")
)


@dataclass(frozen=True, kw_only=True)
class Match:
    """A pattern with its role, and the tensors that it is the first to match."""

    pattern: str
    role: str
    names: tuple[str, ...]
    size: tuple[int, ...]  # of the first tensor


@dataclass(frozen=True, kw_only=True)
class ProposedRoles:
    """Proposed roles of a model. Iterating gives (pattern, role), so that a proposal is accepted wherever `roles` are.

    `str()` shows which pattern matches which tensors. A recipe refuses a model with names in `unmatched`.
    """

    kind: str | None  # config.model_type of a known architecture
    matches: tuple[Match, ...]
    unmatched: tuple[str, ...]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((match.pattern, match.role) for match in self.matches)

    def __len__(self) -> int:
        return len(self.matches)

    def __str__(self) -> str:
        how = f"as a {self.kind} of transformers" if self.kind else "by names alone: check them"
        cells = [
            (match.pattern, match.role, str(len(match.names)), match.names[0], "x".join(map(str, match.size)))
            for match in self.matches
        ]
        lines = [f"roles, {how}", *(f"  {line}" for line in aligned([HEADER, *cells]))]
        if self.unmatched:
            lines.append("without a role; give one in `extra`, e.g. extra={'*.name.weight': 'dense_in'}:")
            lines += [f"  {name}" for name in self.unmatched]
        return "\n".join(lines)


def roles(model: torch.nn.Module, extra: Roles | None = None) -> ProposedRoles:
    """Return ordered name patterns with a role for the parameters of a model. Those of `extra` come first.

    Models of transformers are known by `config.model_type`: gpt2, llama, mixtral, qwen3_moe, olmoe and gpt_oss, with
    experts in stacked tensors or in one module each. For all others common names are tried, and the proposal says so.
    A shared tensor counts once. Raises HpxferError if `extra` is no mapping and no pairs. What `extra` holds is checked
    where the proposal is used.
    """
    plain = plain_names(model)
    parameters = {plain(name): tensor for name, tensor in model.named_parameters(remove_duplicate=False)}
    buffers: Sizes = {plain(name): tuple(tensor.shape) for name, tensor in model.named_buffers()}
    sizes: Sizes = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
    row = known_model(model)
    found = row.roles if row else _by_names(sizes)
    matches, matched = [], set[str]()
    for pattern, role in dict.fromkeys((*pairs_of(extra or ()), *found)):
        searched = sizes if role != BALANCED else {**sizes, **buffers}
        names = tuple(name for name in searched if name not in matched and fnmatchcase(name, pattern))
        matched |= set(names)
        if names:
            matches.append(Match(pattern=pattern, role=role, names=names, size=searched[names[0]]))
    # A recipe asks for the role of the first name of a shared tensor.
    without = tuple(first for first, *_ in names_of_each(parameters) if first not in matched)
    return ProposedRoles(kind=row.name if row else None, matches=tuple(matches), unmatched=without)


def _by_names(sizes: Sizes) -> Pairs:
    """Return common patterns for a model of an unknown architecture.

    A matrix called `gate` is a router in a model with experts, and half of a SwiGLU in any other one. A matrix called
    `w1` is either of the two input matrices of an FFN. The other names in the model decide.
    """
    has_experts = any(fnmatchcase(name, "*experts.*") for name in sizes)
    out = [*COMMON]
    for where, kind in FFNS:
        if kind == "dense" and has_experts:
            out.append(("*.gate.weight", "router"))
        inside = [name for name in sizes if fnmatchcase(name, where)]
        out += [(f"{where}gate_up_proj{end}", f"{kind}_in{JOIN}{kind}_gate") for end in ("", ".weight")]
        out += [(f"{where}.{name}_proj_bias", "hidden_bias") for name in ("gate_up", "down")]
        three = any(fnmatchcase(name, f"{where}.w3{end}") for name in inside for end in ("", ".weight"))
        spelled = [(name, part) for part, names in IN_FFN.items() for name in names]
        if kind == "dense" and has_experts:
            spelled.remove(("gate", "gate"))
        for name, part in [*spelled, *NUMBERED[three].items()]:
            out += [(f"{where}.{name}{end}", f"{kind}_{part}") for end in ("", ".weight")]
            out += [(f"{where}.{name}.bias", "hidden_bias")]
    out += [(f"*.{name}.bias", "hidden_bias") for name in ("*attn.*", "*attention.*")]
    return (*out, *HEADS)
