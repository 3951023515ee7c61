"""Forward sites: the places in a model where its forward pass multiplies by a number of the recipe."""

from __future__ import annotations

from hpxfer.registry import registry

BRANCH = "before it is added to the residual stream, its bias included"


def forward_sites(gate: str) -> dict[str, str]:
    """Return key of a forward multiplier -> what is multiplied by it, for a model with this gate."""
    row = registry("gate").get(gate, "model.gate")
    sites = {
        "attn_logits": "the products q.k before the softmax: `scale` of F.scaled_dot_product_attention",
        "attn_out": f"the output of attention, {BRANCH}",
        "router": "the router's logits, or its input if the router has no bias",
        "expert_out": (
            f"the SUM of gate * expert output over the active experts, {BRANCH}; gate = {row.formula}; the number "
            "contains the base's 1/num_active, so that the model must not average as well"
        ),
        "shared_out": f"the SUM of the shared experts' outputs, {BRANCH}",
        "dense_out": f"the output of a dense FFN, {BRANCH}",
        "readout": "the logits",
    }
    if row.sums_to_one_over is None:
        sites["expert_out"] += "; the gates must not be normalized"
    else:
        sites["route_scale"] = f"the gates, which sum to one over {row.sums_to_one_over} experts before it"
    return sites


def attention_scale(rule: str, head_dim: int) -> float:
    """Return the factor on q.k under the base model's rule."""
    return 1.0 / head_dim if rule == "1/d_head" else float(head_dim**-0.5)
