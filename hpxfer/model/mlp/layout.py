"""Layout of the MLP mixture: its parameters with their roles and sizes, its cost, and the rules of its sweeps.

The input layer has the role `embedding`: tables call it input-like, and its fan-in is no dimension of the shape. The
hidden matrix of an expert is [experts, out, in], so that all experts of a block are one matrix in every product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpxfer.errors import HpxferError
from hpxfer.model.parameters import PROBE_SAMPLES, Memory, ParameterSpec
from hpxfer.registry import registry, rows_of
from hpxfer.scaling.evaluate import parameterization, ratios
from hpxfer.scaling.regimes import regime_warning
from hpxfer.scaling.shape import Shape
from hpxfer.spec import HOW_TO_ALLOW, LEARNED, KeyPath, MLPModel, MLPSpec, Options, Problem, SweepSpec, num_outputs
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


_GATES = ("sigmoid", "softmax", "normalized_softmax")
AT: KeyPath = ("model", "mlp")


def problems(spec: SweepSpec, shapes: Sequence[tuple[KeyPath, Shape]]) -> Iterator[Problem]:
    """Yield every broken rule. `shapes` are those of the sweep, none if they are broken themselves."""
    model = spec.model
    assert isinstance(model, MLPModel)
    options = model.mlp
    if model.gate not in _GATES:
        yield ("model", "gate"), f"must be {', '.join(_GATES[:-1])} or {_GATES[-1]} in the family mlp, got {model.gate}"
    else:
        yield from _aggregation(options, registry("gate").get(model.gate).sums_to_one_over is not None, model.gate)
    if model.balance.aux != "none":
        yield ("model", "balance", "aux"), f"must be none in the family mlp, got {model.balance.aux}"
    if model.balance.bias != "none" and shapes and all(shape.num_active == shape.num_experts for _, shape in shapes):
        yield (
            ("model", "balance", "bias"),
            f"has no effect where all experts are active, got {model.balance.bias}; take it out",
        )
    if options.router_bias in LEARNED and model.balance.bias != "none":
        yield (
            ("model", "balance", "bias"),
            f"must be none with a learned router bias, got {model.balance.bias}: both would move one bias",
        )
    if options.router_bias == "none" and options.router_bias_std != MLPSpec.model_fields["router_bias_std"].default:
        yield (*AT, "router_bias_std"), "goes with router_bias, got none; name one, or take it out"
    if options.loss == "cross_entropy" and spec.data.targets:
        yield (*AT, "loss"), "must be squared_error where samples have real targets, got cross_entropy"
    yield from _shapes(options, shapes)
    yield from _regimes(spec, options, shapes)
    if not options.residual:
        yield from _branches(spec, shapes)


def _branches(spec: SweepSpec, shapes: Sequence[tuple[KeyPath, Shape]]) -> Iterator[Problem]:
    """Yield the shapes of another depth under a table that divides by the depth what a residual branch adds.

    Without a residual the blocks follow each other, and L blocks would divide the features by depth^L. MSSP changes
    nothing per block there (I.10).
    """
    column = rows_of("optimizer").get(spec.training.optimizer).column
    for chosen in spec.parameterizations:
        try:
            rows = parameterization(chosen.table, chosen.conventions).rows(column)
        except HpxferError:
            continue  # reported by itself
        if not any("depth" in dict(row.forward.exponents) for row in rows if row.role == "expert_out"):
            continue
        for at, shape in shapes:
            if shape.depth != shapes[0][1].depth:
                yield (
                    at,
                    f"depth must stay at {shapes[0][1].depth} under {chosen.table} without a residual, got "
                    f"{shape.depth}: the table divides the output of each block by the depth; write "
                    "model.mlp.residual: true",
                )


def _aggregation(options: MLPSpec, sums_to_one: bool, gate: str) -> Iterator[Problem]:
    given = options.aggregation
    if sums_to_one and given not in (None, "none"):
        yield (
            (*AT, "aggregation"),
            f"must be none with the gate {gate}, whose weights sum to one already, got {given}; take it out",
        )
    elif not sums_to_one and given == "none":
        yield (
            (*AT, "aggregation"),
            (f"must be 1/K or 1/M with the gate {gate}, whose weights sum to no fixed number, got none"),
        )


def _shapes(options: MLPSpec, shapes: Sequence[tuple[KeyPath, Shape]]) -> Iterator[Problem]:
    for at, shape in shapes:
        if options.expert_matrices == 1 and shape.expert_width != shape.width:
            yield (
                at,
                f"expert_width must be the width {shape.width} with expert_matrices: 1, got {shape.expert_width}; give "
                "expert_ratio: 1",
            )


def _regimes(spec: SweepSpec, options: MLPSpec, shapes: Sequence[tuple[KeyPath, Shape]]) -> Iterator[Problem]:
    """Yield the shapes that leave a table's regime, and the tables with a router bias of their own beside the model's.

    Without its regime, a table of MSSP predicts nothing, and a sweep would measure how wrong it is.
    """
    for index, chosen in enumerate(spec.parameterizations):
        try:
            choice = parameterization(chosen.table, chosen.conventions)
        except HpxferError:
            continue  # reported by itself
        if choice.structure().router_bias_std and options.router_bias != "none":
            yield (
                ("parameterizations", index),
                f"{choice.label()} has a router bias by its convention router_bias_std, and model.mlp.router_bias is "
                f"{options.router_bias}; keep one of the two",
            )
        if choice.table.regime is None:
            continue
        for at, shape in shapes:
            axis = spec.axes[str(at[1])] if at[0] == "axes" else None
            allowed = axis is not None and axis.allow_kappa_change
            if not allowed and (why := regime_warning(choice.table, ratios(shapes[0][1], shape))):
                yield at, why + ("" if axis is None else f"; {HOW_TO_ALLOW}")
