"""Sites: where the forward pass multiplies. The recipe's user writes these multiplications; nothing else is scaled."""

from __future__ import annotations

BRANCH = "before it is added to the residual stream, its bias included"

GATES = {
    "sigmoid": "gate = sigmoid(router logit)",
    "softmax": "gate = num_active * softmax(router logits)",
}


def sites(gate: str) -> dict[str, str]:
    """Return key of a forward multiplier -> what it multiplies, for a model with this gate."""
    return {
        "attn_logits": "the products q.k before the softmax: `scale` of F.scaled_dot_product_attention",
        "attn_out": f"the output of attention, {BRANCH}",
        "expert_out": (
            f"the SUM of gate * expert output over the active experts, {BRANCH}; {GATES[gate]}; "
            "the base's 1/num_active is in the number: do not average, do not normalize the gates"
        ),
        "shared_out": f"the output of the shared experts, {BRANCH}",
        "dense_out": f"the output of a dense FFN, {BRANCH}",
        "readout": "the logits",
    }


def attention_scale(rule: str, head_dim: int) -> float:
    """Return what q.k is multiplied by under the base model's rule."""
    return 1.0 / head_dim if rule == "1/d_head" else float(head_dim**-0.5)
