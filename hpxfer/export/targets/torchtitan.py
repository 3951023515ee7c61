"""`torchtitan`: a Python module with a config function for torchtitan.

Facts of torchtitan: the first regex of `param_groups` that is found in a name wins, a pattern without a parameter and a
parameter without a pattern are errors, in every part of a pipeline; `min_lr_factor` is a share of the peak; a module's
config has `param_init`, which maps a parameter to the function that starts it; K and V share one config. The names are
those of version 0.3 (torchtitan/components/optimizer, torchtitan/models/common).
"""

from __future__ import annotations

from collections.abc import Sequence

from hpxfer.export.names import Named
from hpxfer.export.plan import Lack, Plan, feed_forwards, forward_lacks, in_layers, init_lacks, named, other_lacks
from hpxfer.export.source import header, literal, require_form, strings
from hpxfer.export.target import ExportTarget
from hpxfer.recipe import Recipe
from hpxfer.recipe.known_models import Pairs
from hpxfer.recipe.match import templates
from hpxfer.scaling.shape import Shape

SITES = {
    "embedding": "tok_embeddings",
    "attn_out": "layers.*.attention",
    "router": "layers.*.moe.router.gate",
    "expert_out": "layers.*.moe.routed_experts",
    "route_scale": "layers.*.moe.routed_experts",
    "shared_out": "layers.*.moe.shared_experts",
    "dense_out": "layers.*.feed_forward",
    "readout": "lm_head",
}

AT = r'''
# Activation checkpointing and compile put modules such as _checkpoint_wrapped_module between the parts of a name.
WRAPPERS = r"(?:_\w+\.)*"


def at(*names: str) -> str:
    """Return the regex of whole names, in which # stands for any whole number."""
    parts = [[re.escape(part).replace(r"\#", "[0-9]+") for part in name.split(".")] for name in names]
    return "|".join("^" + WRAPPERS + (r"\." + WRAPPERS).join(of_name) + "$" for of_name in parts)

'''

# The module has moved: into components.optimizer with version 0.3.
SCHEDULERS = """\
try:
    from torchtitan.components.optimizer import LRSchedulersContainer
except ImportError:
    from torchtitan.components.lr_scheduler import LRSchedulersContainer
"""

CONFIGURE = '''

def set_param_init(model_config, path: str = "", left: set[str] | None = None) -> None:
    """Set param_init on the config of every module whose parameters are in PARAM_INIT; raise if one has none."""
    whole = left is None
    left = set(PARAM_INIT) if left is None else left
    if isinstance(model_config, (list, tuple)):
        children = [(str(number), child) for number, child in enumerate(model_config)]
    elif hasattr(model_config, "__dataclass_fields__"):
        children = [(name, getattr(model_config, name)) for name in model_config.__dataclass_fields__]
        # One config, wkv, makes the modules wk and wv.
        paths = [path, path[:-3] + "wk", path[:-3] + "wv"] if path.endswith(".wkv") else [path]
        found = {
            pattern: pattern.rpartition(".")[2]
            for pattern in PARAM_INIT
            if path and any(re.search(at(pattern), each + "." + pattern.rpartition(".")[2]) for each in paths)
        }
        if len({(name, PARAM_INIT[pattern]) for pattern, name in found.items()}) > len(set(found.values())):
            raise ValueError(f"{path}: its modules share one config and must have one std, got {sorted(found)}")
        if found and "param_init" in model_config.__dataclass_fields__:
            own = {name: partial(nn.init.normal_, mean=0.0, std=PARAM_INIT[pattern]) for pattern, name in found.items()}
            model_config.param_init = {**(model_config.param_init or {}), **own}
            left -= set(found)
    else:
        return
    for name, child in children:
        set_param_init(child, path + "." + name if path else name, left)
    if whole and left:
        raise ValueError(f"no module config for {sorted(left)}: set their param_init by hand, from PARAM_INIT")


def configure(config):
    """Return the Trainer.Config with the recipe's optimizer, schedule and initialization."""
    config.optimizer = optimizer()
    config.model_spec = copy.deepcopy(config.model_spec)
    set_param_init(config.model_spec.model)
'''


def roles(recipe: Recipe) -> Pairs:
    """Return the roles that names leave open: w1 is the gate, w3 the other input of an FFN, w2 its output."""
    ffns = (("*.moe.shared_experts", "shared"), ("*experts", "expert"), ("*.feed_forward", "dense"))
    parts = (("w1", "gate"), ("w2", "out"), ("w3", "in"))
    return tuple(
        (f"{where}.{name}{end}", f"{kind}_{part}") for where, kind in ffns for name, part in parts for end in ENDS
    )


ENDS = (".weight", "", "_E*")


def names(recipe: Recipe, shape: Shape) -> Sequence[Named]:
    """Return the names of a decoder of torchtitan with grouped-query attention, as its Llama 3 and Qwen3 have them."""
    attention = ["attention.qkv_linear.wqkv.weight", "attention.wo.weight"]
    if recipe.file.model.qk_norm:
        attention += ["attention.q_norm.weight", "attention.k_norm.weight"]
    of_layer = ["attention_norm.weight", "ffn_norm.weight", *attention]
    dense = [f"feed_forward.{name}.weight" for name in ("w1", "w2", "w3")]
    experts = [f"moe.routed_experts.inner_experts.{name}" for name in ("w1_EFD", "w2_EDF", "w3_EFD")]
    experts.append("moe.router.gate.weight")
    shared = [f"moe.shared_experts.{name}.weight" for name in ("w1", "w2", "w3")]
    layers = {i: [*of_layer, *feed_forwards(shape, i, dense, experts, shared)] for i in range(shape.depth)}
    head = [] if recipe.file.model.tied_embeddings else ["lm_head.weight"]
    return named(["tok_embeddings.weight", *in_layers(shape, layers, "layers.{}."), "norm.weight", *head])


def lacks(plan: Plan) -> Sequence[Lack]:
    """Return what torchtitan cannot hold: every forward multiplier."""
    scale = plan.forward.get("attn_logits")
    by_model = {
        "attn_logits": f"set block.attention.scaling = {scale!r} in each block, which is 1/sqrt(head_dim) at first"
    }
    same = scale is not None and abs(scale * plan.shape.head_dim**0.5 - 1) < 1e-9
    # param_init holds the std of every matrix; the same draw for all experts it does not.
    native = {row.name: row.init if isinstance(row.init, float) else 0.0 for row in plan.rows}
    held = ("attn_logits",) if same else ()
    return [*forward_lacks(plan, SITES, held, by_model), *init_lacks(plan, native), *other_lacks(plan)]


def _param_init(plan: Plan) -> str:
    stds: dict[float, list[str]] = {}
    for row in plan.rows:
        if isinstance(row.init, float) or row.init == "zeros":
            stds.setdefault(row.init if isinstance(row.init, float) else 0.0, []).append(row.name)
    lines = [
        f"    {pattern!r}: {literal(std)},"
        for std, patterns in zip(stds, templates(list(stds.values())), strict=True)
        for pattern in patterns
    ]
    return "\n".join(["PARAM_INIT = {", *lines, "}"]) + "\n"


def _scheduler(plan: Plan) -> tuple[str, str]:
    """Return the code of the schedule, and the lines with which `configure` sets it."""
    found = require_form(plan.phases)
    if found is None:
        return "", ""
    ratio = {"constant": "0.0", "wsd": literal(found.decay_steps / found.steps)}.get(found.decay, "None")
    kind = "cosine" if found.decay == "cosine" else "linear"
    code = (
        "\n\ndef lr_scheduler() -> LRSchedulersContainer.Config:\n"
        '    """Return the schedule of the recipe, relative to the peak LR of each group."""\n'
        f"    return LRSchedulersContainer.Config(\n        warmup_steps={found.warmup_steps},\n"
        f"        decay_ratio={ratio},\n        decay_type={kind!r},\n"
        f"        min_lr_factor={literal(found.final_fraction)},\n    )\n"
    )
    return code, f"    config.lr_scheduler = lr_scheduler()\n    config.training.steps = {found.steps}\n"


def files(plan: Plan, lacks: Sequence[Lack]) -> dict[str, str]:
    """Return the module."""
    groups = []
    for group, patterns in zip(plan.groups, templates([group.names for group in plan.groups]), strict=True):
        numbers = {"lr": group.lr, "betas": plan.betas, "eps": group.eps, "weight_decay": group.weight_decay}
        spelled = ", ".join(f"{name!r}: {literal(value)}" for name, value in numbers.items())
        groups.append(
            f"            # {', '.join(group.roles)}\n            ParamGroupConfig(\n                pattern=at(\n"
            f"{strings(patterns, 20)}\n                ),\n                optimizer_name='AdamW',\n"
            f"                optimizer_kwargs={{{spelled}}},\n            ),\n"
        )
    text = header(
        plan,
        "torchtitan: a config function with optimizer, schedule and initialization, written by hpxfer.",
        "In a config function of yours: return configure(Trainer.Config(...)), and name it with --module and --config. "
        "torchtitan raises if a pattern matches no parameter of a part of a pipeline: with pipeline parallelism leave "
        "out the patterns that a part does not have.",
        lacks,
    )
    scheduler, settings = _scheduler(plan)
    imports = ["import copy", "import re", "from functools import partial", "", "from torch import nn"]
    imports += ["from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig", ""]
    imports += [SCHEDULERS] if scheduler else []
    optimizer = (
        "\n\ndef optimizer() -> OptimizersContainer.Config:\n"
        '    """Return AdamW with the recipe\'s groups. Each parameter matches one pattern."""\n'
        "    return OptimizersContainer.Config(\n        param_groups=[\n" + "".join(groups) + "        ]\n    )\n"
    )
    start = "\n# Name, with # for any whole number -> std of the normal numbers it starts with.\n" + _param_init(plan)
    parts = [
        text,
        "\n",
        "\n".join(imports),
        AT,
        start,
        optimizer,
        scheduler,
        CONFIGURE,
        settings,
        "    return config\n",
    ]
    return {"hpxfer_torchtitan.py": "".join(parts)}


TORCHTITAN = ExportTarget(
    name="torchtitan",
    doc="a Python module with a config function for torchtitan",
    roles=roles,
    names=names,
    lacks=lacks,
    files=files,
)
