"""Sites: where the forward pass multiplies. Nothing else of it is scaled."""

from __future__ import annotations

from hpxfer.registry import registry

BRANCH = "before it is added to the residual stream, its bias included"


def sites(gate: str) -> dict[str, str]:
    """Return key of a forward multiplier -> what it multiplies, for a model with this gate."""
    row = registry("gate").get(gate, "model.gate")
    out = {
        "attn_logits": "the products q.k before the softmax: `scale` of F.scaled_dot_product_attention",
        "attn_out": f"the output of attention, {BRANCH}",
        "router": "the router's logits; with a router without a bias, its input as well",
        "expert_out": (
            f"the SUM of gate * expert output over the active experts, {BRANCH}; gate = {row.formula}; "
            "the base's 1/num_active is in the number: do not average besides"
        ),
        "shared_out": f"the SUM of the shared experts' outputs, {BRANCH}",
        "dense_out": f"the output of a dense FFN, {BRANCH}",
        "readout": "the logits",
    }
    if row.sums_to_one_over is not None:
        out["route_scale"] = "the gates, which sum to one (of softmax: over all experts) without it"
    else:
        out["expert_out"] += ", do not normalize the gates"
    return out


def attention_scale(rule: str, head_dim: int) -> float:
    """Return what q.k is multiplied by under the base model's rule."""
    return 1.0 / head_dim if rule == "1/d_head" else float(head_dim**-0.5)
