"""The gates that recipes know of further architectures, against the weights that their routers hand to the experts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from hf_models import MOE

from hpxfer.recipe.known_models import known_gate
from hpxfer.registry import registry

EXPERTS = {"num_local_experts": 4}
DOTS = {"n_routed_experts": 4, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
LFM = {"num_experts": 4, "moe_intermediate_size": 16, "num_dense_layers": 0, "layer_types": ["full_attention"] * 2}


@pytest.mark.parametrize(
    ("name", "options", "gate"),
    [
        ("GraniteMoeShared", {**EXPERTS, "shared_intermediate_size": 16}, "normalized_softmax"),
        (
            "GraniteMoeHybrid",
            {**EXPERTS, "shared_intermediate_size": 16, "layer_types": ["attention"] * 2, "mamba_n_heads": 8},
            "normalized_softmax",
        ),
        ("HunYuanMoEV1", {"num_experts": 4, "moe_topk": 2, "head_dim": 8}, "normalized_softmax"),
        ("MiniMax", EXPERTS, "normalized_softmax"),
        ("Dots1", {**DOTS, "norm_topk_prob": True}, "normalized_sigmoid"),
        ("Dots1", {**DOTS, "norm_topk_prob": False}, "sigmoid"),
        ("Lfm2Moe", {**LFM, "norm_topk_prob": True}, "normalized_sigmoid"),
        ("Lfm2Moe", {**LFM, "norm_topk_prob": False}, "sigmoid"),
    ],
)
def test_a_known_gate_is_what_the_router_computes(name: str, options: dict[str, Any], gate: str) -> None:
    torch.manual_seed(3)
    config = getattr(transformers, f"{name}Config")(**{**MOE, **options})
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    sums: list[torch.Tensor] = []

    def keep(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = [one for one in (*args, *named.values()) if torch.is_tensor(one) and one.is_floating_point()]
        sums.append(given[-1].sum(-1))

    for part in model.modules():
        if type(part).__name__.endswith("Experts"):
            part.register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        model(torch.arange(8)[None])
    assert known_gate(model) == gate
    assert len(sums) == 2
    to_one = all(torch.allclose(each, torch.ones_like(each), atol=1e-4) for each in sums)
    assert to_one == (registry("gate").get(gate).sums_to_one_over == "active")
