"""Layout of the MLP mixture: its parameters with their roles and sizes, and what a sample costs.

The input layer has the role `embedding`: tables call it input-like, and its fan-in is no dimension of the shape. The
hidden matrix of an expert is [experts, out, in], so that all experts of a block are one matrix in every product.
"""

from __future__ import annotations

from hpxfer.model.parameters import PROBE_SAMPLES, Memory, ParameterSpec
from hpxfer.scaling.shape import Shape
from hpxfer.spec.blocks import Options
from hpxfer.spec.mlp import LEARNED, num_outputs
from hpxfer.trial import Setting

# The roles that have a forward multiplier: the papers' multipliers of input, router and output, and that of a branch.
FORWARD_ROLES = ("embedding", "router", "expert_out", "readout")
# The experts are computed for every sample, active or not. So their cost is that of all.
_PASSES = 3  # forward, and in the backward pass the gradients by inputs and by weights


def roles(shape: Shape, options: Options) -> tuple[str, ...]:
    """Return the roles of the model's parameters."""
    one = options.mlp is not None and options.mlp.expert_matrices == 1
    return ("embedding", "router", "router_bias", *(() if one else ("expert_in",)), "expert_out", "readout")


def parameters(shape: Shape, setting: Setting) -> tuple[ParameterSpec, ...]:
    """Return every trained parameter of one trial."""
    width, experts, hidden, blocks = shape.width, shape.num_experts, shape.expert_width, range(shape.depth)
    outputs = outputs_of(setting)
    out = [
        ParameterSpec(name="input", role="embedding", size=(setting.num_inputs, width)),
        ParameterSpec(name="router", role="router", size=(width, experts), blocks=blocks),
    ]
    if setting.mlp.router_bias in LEARNED:
        out.append(ParameterSpec(name="router_logit_bias", role="router_bias", size=(experts,), blocks=blocks))
    if setting.mlp.expert_matrices == 2:
        out.append(ParameterSpec(name="expert_in", role="expert_in", size=(experts, hidden, width), blocks=blocks))
    out += [
        ParameterSpec(name="expert_out", role="expert_out", size=(experts, hidden, width), blocks=blocks),
        ParameterSpec(name="readout", role="readout", size=(width, outputs)),
    ]
    return tuple(out)


def outputs_of(setting: Setting) -> int:
    """Return the outputs of the readout."""
    return num_outputs(setting.mlp.loss, setting.vocab_size, setting.num_targets)


def active_params(shape: Shape, setting: Setting) -> int:
    """Return the number of parameters that one sample meets: those of the active experts, and all others."""
    total = 0
    for spec in parameters(shape, setting):
        count = spec.numel * spec.layers
        routed = spec.role in ("expert_in", "expert_out")
        total += count * shape.num_active // shape.num_experts if routed else count
    return total


def flops_per_sample(shape: Shape, setting: Setting) -> float:
    """Return the training FLOPs of one sample. Nothing needs the gradient by the sample itself."""
    matrices = [spec for spec in parameters(shape, setting) if len(spec.size) > 1]
    products = sum(2 * _PASSES * spec.numel * spec.layers for spec in matrices)
    return float(products - 2 * setting.num_inputs * shape.width)


def memory(shape: Shape, setting: Setting, cuda: bool) -> Memory:
    """Return what the backward pass of one trial needs, in bytes. All numbers are float32."""
    batch, width = setting.batch_tokens, shape.width
    hidden = shape.num_experts * shape.expert_width
    features, gates = 4 * batch * width, 4 * batch * shape.num_experts
    experts = 4 * batch * hidden
    probe = min(batch, PROBE_SAMPLES)
    views = (4 + 8 + 4 + 1) * probe * shape.num_experts * shape.depth  # logits, weights in float64, scores, active
    routers = 4 * width * shape.num_experts * shape.depth
    # A block computed on the fixed samples, or a few float64 tensors of the size of its gates or of one expert, or the
    # routers in float64 with what they moved by.
    passing = 4 * probe * (2 * width + 3 * hidden * (shape.depth > 1))
    measuring = max(passing, 8 * 8 * probe * shape.num_experts, 4 * 8 * shape.expert_width * width, 6 * routers)
    return Memory(
        parts={
            "inputs of blocks": shape.depth * features,
            "gates": shape.depth * 4 * gates,
            "experts": shape.depth * 3 * experts,  # before and after the activation, and times the gates
        },
        passing=4 * experts + 2 * features,
        ends=4 * batch * (2 * setting.num_inputs + 2 * width) + 3 * 4 * batch * outputs_of(setting),
        head_passing=2 * features,
        first=0,
        measured=4 * probe * (setting.num_inputs + 2 * max(1, setting.num_targets)) + views + routers,
        measuring=views + measuring,
    )
