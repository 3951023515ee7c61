"""Conditioned: the roles of what a diffusion transformer has beside attention and FFNs. Pure.

The names are those of DiT, SiT and PixArt. They count only in a model whose blocks have modulations, or tables of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hpxfer.recipe.places import WRAPPER, Place

TIME = r"(t|time|timestep)_embed(der)?"
# What stands below the module around the blocks, without `weight` or `bias` -> role.
OUTSIDE = {
    r"(x_embedder|patch_embed(der)?)(\.(proj|linear))?|pos_embed\.proj": "patch_in",
    rf"{TIME}\.(mlp\.|linear_?|fc)?0|{TIME}\.(linear_?|fc_?)1": "time_in",
    rf"{TIME}\.(mlp\.|linear_?|fc)?2": "time_out",
    r"(y|label|class)_embed(der)?(\.embedding_table)?": "label",
    r"final_layer\.ada_?ln(_?modulation)?(\.\d)?": "final_modulation",
    r"final_layer\.linear": "readout",
    r"final_layer\.scale_shift_table": "final_bias",
    r"t_block(\.\d)?": "final_modulation",  # one modulation for all blocks
}
INSIDE = {
    r"ada_?ln(_?modulation)?(\.\d)?": "modulation",
    r"scale_shift_table": "hidden_bias",
}
TABLE = "scale_shift_table"
BY_TABLE = "as a bias of a modulation, which starts at zero"
BY_SHARED = "as a modulation outside of the blocks, which has their sum of gradients"
BY_LAST = "as a bias outside of the blocks"
LAST = ("final_modulation", "readout")  # whose biases lie outside of the blocks, and after them


def conditioned(places: Mapping[str, Place]) -> Iterator[tuple[str, str, str | None]]:
    """Yield (name, role, why it is a guess or None) for the tensors of a conditioned model, biases included."""
    inside = {name: _role(_below(name, at.block), INSIDE) for name, at in places.items() if at.block}
    if not any(inside.values()):
        return
    for name, at in places.items():
        local = _below(name, at.block) if at.block else _local(name, at)
        role = inside[name] if at.block else _role(local, OUTSIDE)
        if role is None or at.kind == "foreign":
            continue
        if at.is_bias:
            yield name, "final_bias" if role in LAST else "hidden_bias", BY_LAST if role == "readout" else None
        else:
            shared = BY_SHARED if local.startswith("t_block") else None
            yield name, role, BY_TABLE if local.endswith(TABLE) else shared


def _role(local: str, table: Mapping[str, str]) -> str | None:
    return next((role for pattern, role in table.items() if re.fullmatch(pattern, local)), None)


def _local(name: str, at: Place) -> str:
    """Return the name below the module around the blocks."""
    own = ".".join(at.path)
    return f"{own}.{_below(name, at.holder)}" if own else _below(name, at.holder)


def _below(name: str, holder: str) -> str:
    """Return the rest of a name below a module, in small letters, without wrappers and without weight or bias."""
    parts = [part for part in name.lower().split(".") if not WRAPPER.fullmatch(part)]
    local = ".".join(parts).removeprefix(holder).removeprefix(".")
    return re.sub(r"\.(weight|bias)$", "", local)
