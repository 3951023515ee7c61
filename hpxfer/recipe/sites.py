"""Sites: where the forward pass multiplies. Nothing else of it is scaled."""

from __future__ import annotations

BRANCH = "before it is added to the residual stream, its bias included"

# The gates that a recipe's base may have had. Those below the first are route_scale times numbers that sum to one.
GATES = {
    "sigmoid": "gate = sigmoid(router logit)",
    "softmax": "gate = route_scale * softmax(router logits), over all experts",
    "normalized_sigmoid": "gate = route_scale * sigmoid(router logit) / sum over the active experts",
    "normalized_softmax": "gate = route_scale * softmax(router logits), over the active experts",
}
NORMALIZED = tuple(gate for gate in GATES if gate != "sigmoid")


def sites(gate: str) -> dict[str, str]:
    """Return key of a forward multiplier -> what it multiplies, for a model with this gate."""
    out = {
        "attn_logits": "the products q.k before the softmax: `scale` of F.scaled_dot_product_attention",
        "attn_out": f"the output of attention, {BRANCH}",
        "router": "the router's logits; with a router without a bias, its input as well",
        "expert_out": (
            f"the SUM of gate * expert output over the active experts, {BRANCH}; {GATES[gate]}; "
            "the base's 1/num_active is in the number: do not average besides"
        ),
        "shared_out": f"the SUM of the shared experts' outputs, {BRANCH}",
        "dense_out": f"the output of a dense FFN, {BRANCH}",
        "readout": "the logits",
    }
    if gate in NORMALIZED:
        out["route_scale"] = "the gates, which sum to one (of softmax: over all experts) without it"
    else:
        out["expert_out"] += ", do not normalize the gates"
    return out


def attention_scale(rule: str, head_dim: int) -> float:
    """Return what q.k is multiplied by under the base model's rule."""
    return 1.0 / head_dim if rule == "1/d_head" else float(head_dim**-0.5)
