"""Hypothesis strategies: random shapes and random legal sweeps."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from hpxfer.scaling.hps import MULTIPLIERS, SCALARS
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape
from hpxfer.spec import SweepSpec
from hpxfer.spec.axes import DIMENSION
from hpxfer.spec.checks import RESERVED_NAMES

Data = dict[str, Any]

# YAML cannot hold a lone surrogate; everything else is fair, e.g. `1e5`, `yes`, quotes, line ends.
TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8) | st.sampled_from(
    ("1e5", "12e-3", "yes", "null", "2020-01-01", "0x1", ".inf", "~", "a: b", "- a", "#")
)
POSITIVE = st.floats(min_value=1e-12, max_value=1e3)
BETA = st.just(0.0) | st.floats(min_value=2.0**-126, max_value=0.999)
DOTTED = st.builds("{}.{}".format, st.sampled_from(sorted(ROLES)), st.sampled_from(MULTIPLIERS))
COUNT = st.integers(min_value=1, max_value=6)


def shapes(*, present: bool = True) -> st.SearchStrategy[Shape]:
    """Return random shapes. Composition needs the dense and shared widths `present` everywhere, or nowhere."""
    width = st.integers(1, 16).map(lambda n: 8 * n)
    optional = width if present else st.just(0)
    return st.builds(
        Shape,
        width=width,
        depth=st.integers(1, 64),
        num_experts=st.integers(8, 64),
        num_active=st.integers(1, 8),
        expert_width=width,
        head_dim=st.just(8),
        num_shared=st.integers(1, 3) if present else st.just(0),
        shared_width=optional,
        dense_width=optional,
        batch_tokens=COUNT.map(lambda n: 32 * n),
        steps=st.integers(1, 1000),
    )


@st.composite
def sweeps(draw: st.DrawFn) -> SweepSpec:
    """Return a random legal sweep."""
    options = draw(_options())
    base = draw(_bases(options))
    context = draw(st.sampled_from((8, 32, 48)))
    optimizer = draw(st.sampled_from(("adamw", "sgd", "muon", "muon[scale=original,router=muon]")))
    training = draw(_trainings(context * 32 * draw(COUNT))) | {"optimizer": optimizer}
    table = draw(st.sampled_from(_tables(base, optimizer)))
    foreign = {"adamw": ("momentum", "adamw_lr"), "sgd": ("eps", "beta1", "beta2", "adamw_lr")}.get(optimizer, ())
    scalars = [name for name in SCALARS if name not in (*foreign, "aux_weight", "z_weight")]
    dotted = _dotted("num_experts" in base)
    if "num_experts" not in base:
        scalars.remove("router_bias_lr")
    grid = draw(st.lists(st.sampled_from(scalars) | dotted, min_size=1, max_size=3, unique=True))
    product = len(grid) == 1 and draw(st.booleans())  # several must hold the base values, which tests of their own do
    hps = draw(_hps(dotted))
    if "lr" not in grid or (len(grid) > 1 and not product):
        hps["lr"] = draw(POSITIVE)
    if "adamw_lr" not in foreign:
        hps["adamw_lr"] = draw(POSITIVE)
    return SweepSpec.model_validate(
        {
            "name": draw(
                st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True).filter(
                    lambda name: name not in RESERVED_NAMES
                )
            ),
            "model": {
                "family": "gpt",
                "base": base,
                "context": context,
                "gate": draw(st.sampled_from(("sigmoid", "softmax", "normalized_sigmoid"))),
                **options,
                "tied_embeddings": draw(st.booleans()),
                "norm_gains": draw(st.booleans()),
                "biases": draw(st.booleans()),
                "init": draw(st.sampled_from(("fan_in", "constant"))),
                "init_draw": draw(st.sampled_from(("generator", "counter"))),
                "embedding_std": draw(POSITIVE),
            },
            "data": draw(_data()),
            "training": training,
            "parameterizations": draw(_parameterizations(table)),
            "axes": draw(_axes(base, options, training if table != "complete-mue" else None)),
            "hps": hps,
            "grid": {name: draw(_values(name)) for name in grid},
            "product": product,
            "seeds": draw(COUNT | st.lists(st.integers(0, 2**40), min_size=1, max_size=3, unique=True)),
            "judge": draw(st.fixed_dictionaries({}, optional={"hp": st.sampled_from(grid)})),
            "precision": draw(st.sampled_from(("float32", "bfloat16"))),
            "resources": draw(st.fixed_dictionaries({}, optional={"workers": COUNT, "stack_size": COUNT})),
        }
    )


def _dotted(has_experts: bool) -> st.SearchStrategy[str]:
    """Return constant multipliers of roles that the model has, whatever its options, and that start at random."""
    roles = ("embedding", "attn_q", *(("router", "expert_out") if has_experts else ("dense_out",)))
    kinds = [f"{role}.{kind}" for role in roles for kind in MULTIPLIERS]
    return st.sampled_from([name for name in kinds if name != "attn_q.forward_mult"])  # no family multiplies that


def _options() -> st.SearchStrategy[Data]:
    """Return what kind of FFN each block has; `moe_every` and `dense_first` only where there are experts."""
    ffn = {"ffn": st.sampled_from(("gelu", "swiglu"))}
    blocks = {"moe_every": st.integers(1, 2), "dense_first": st.integers(0, 1)}
    return st.fixed_dictionaries(ffn) | st.fixed_dictionaries(ffn | blocks)


def _least_depth(options: Data) -> int:
    """Return the fewest blocks of which one has experts."""
    return int(options.get("moe_every", 1) + options.get("dense_first", 0))


@st.composite
def _bases(draw: st.DrawFn, options: Data) -> Data:
    head_dim = draw(st.sampled_from((8, 16, 24)))
    width = head_dim * draw(COUNT)

    def size(kind: str) -> Data:
        hidden = 8 * draw(COUNT)
        return draw(st.sampled_from(({f"{kind}_width": hidden}, {f"{kind}_ratio": hidden / width})))

    base = {"width": width, "head_dim": head_dim}
    if "moe_every" not in options and draw(st.booleans()):
        return base | {"depth": draw(COUNT)} | size("dense")
    base["num_groups"] = draw(st.integers(1, 2))
    base["num_active"] = base["num_groups"] * draw(COUNT)
    base["num_experts"] = base["num_active"] * draw(COUNT)
    base["depth"] = _least_depth(options) + draw(st.integers(0, 3))
    base["num_shared"] = draw(st.integers(0, 2))
    shared = size("shared") if base["num_shared"] else {}
    return base | size("expert") | shared | (size("dense") if _least_depth(options) > 1 else {})


def _tables(base: Data, optimizer: str) -> list[str]:
    """Return tables that have rows for all the roles of such a model."""
    if optimizer == "sgd":
        return ["sp", "mup"]
    if "num_experts" not in base:
        return ["sp", "completep", "complete-mue"]
    return ["sp", "complete-mue", *([] if base["num_shared"] else ["completep-moe"])]


def _data() -> st.SearchStrategy[Data]:
    read = st.fixed_dictionaries(
        {"source": st.just("builtin:stdlib") | TEXT.map("text:{}".format)},
        optional={"tokenizer": st.sampled_from(("ascii", "bytes")), "digest": TEXT},
    )
    source = {"source": TEXT.map("tokens:{}".format)}
    ids = st.fixed_dictionaries(source, optional={"vocab_size": COUNT, "digest": TEXT})
    gpt2 = st.fixed_dictionaries({**source, "tokenizer": st.just("gpt2")})
    return read | ids | gpt2


@st.composite
def _trainings(draw: st.DrawFn, batch_tokens: int) -> Data:
    steps = draw(st.integers(1, 1000))
    decay = draw(st.sampled_from(("constant", "cosine", "linear", "wsd")))
    decay_steps = draw(st.integers(1, steps))
    schedule: Data = {"decay": decay, "warmup": draw(st.integers(0, steps - decay_steps))}
    if decay == "wsd":
        schedule["decay_length"] = decay_steps
    return {
        "batch_tokens": batch_tokens,
        **draw(st.sampled_from(({"steps": steps}, {"tokens": steps * batch_tokens}))),
        "betas": draw(st.tuples(BETA, BETA)),
        "eps": draw(POSITIVE),
        "weight_decay": draw(POSITIVE),
        "schedule": schedule,
        "validation_tokens": batch_tokens * 2 * draw(COUNT),
        **draw(st.fixed_dictionaries({}, optional={"gradient_clip": POSITIVE})),
    }


def _parameterizations(table: str) -> st.SearchStrategy[list[str | Data]]:
    if table != "completep-moe":
        return st.just([table]) | st.just([table, "sp"] if table != "sp" else ["sp"])
    conventions = st.fixed_dictionaries(
        {}, optional={"depth_alpha": st.floats(0.5, 0.99), "router_init_exponent": st.sampled_from((0.5, "inf"))}
    )
    return conventions.map(lambda chosen: ["sp", {"table": table, "conventions": chosen}])


def _axes(base: Data, options: Data, training: Data | None) -> st.SearchStrategy[Data]:
    """Return axes of a base; of batch and duration only with a `training`, for a table that leaves betas alone."""
    times = st.lists(COUNT, min_size=1, max_size=3)
    depth = COUNT if "num_experts" not in base else st.integers(_least_depth(options), 6)
    change: dict[str, st.SearchStrategy[Any]] = {"width": COUNT.map(lambda n: n * base["width"]), "depth": depth}
    named: dict[str, st.SearchStrategy[Any]] = {"width": times.map(lambda ns: [n * base["width"] for n in ns])}
    if training is not None:
        steps = training.get("steps") or training["tokens"] // training["batch_tokens"]
        change |= {"steps": st.integers(2, 2000)}
        named |= {"duration": st.lists(st.integers(2, 2000), min_size=1, max_size=2)}
        if steps >= 4 and steps % 2 == 0:  # half of them must still hold a warm-up and a decay
            named |= {"batch": st.just([2 * training["batch_tokens"]])}
    required = {"depth": st.lists(depth, min_size=1, max_size=3)}
    if "num_experts" in base:
        _of_experts(base, times, change, named)
    if "dense_width" in base or "dense_ratio" in base:
        change["dense_width"] = COUNT.map(lambda n: 8 * n)
    free_name = TEXT.filter(lambda text: text not in DIMENSION)
    changes = st.fixed_dictionaries({}, optional=change)
    free = st.dictionaries(free_name, st.lists(changes, min_size=1, max_size=3), min_size=1, max_size=2)
    return st.fixed_dictionaries(required, optional=named) | free


def _of_experts(base: Data, times: st.SearchStrategy[list[int]], change: Data, named: Data) -> None:
    """Add what moves experts. Where kappa moves, the axis says that it may."""
    experts, active = base["num_experts"], base["num_active"]

    def freely(values: st.SearchStrategy[list[int]]) -> st.SearchStrategy[Data]:
        return values.map(lambda found: {"values": found, "allow_kappa_change": True})

    in_groups = st.integers(1, active).map(lambda n: n * base["num_groups"]).filter(lambda n: n <= experts)
    change["num_experts"] = COUNT.map(lambda n: n * experts)
    change["expert_width"] = COUNT.map(lambda n: 8 * n)
    named["experts"] = times.map(lambda ns: {"values": [n * experts for n in ns]})
    named["capacity"] = freely(times.map(lambda ns: [n * experts for n in ns]))
    named["active"] = freely(st.lists(in_groups, min_size=1, max_size=2))
    named["groups"] = st.just([n for n in range(1, 7) if active % n == 0])
    if base["num_shared"]:  # the first shared expert brings roles that not every table has
        change["num_shared"] = COUNT
        named["shared"] = st.lists(st.integers(0, 3), min_size=1, max_size=3)
    hidden = base.get("expert_width") or round(base["expert_ratio"] * base["width"])
    finer = [n for n in range(1, 7) if hidden % (8 * n) == 0]
    named["granularity"] = st.lists(st.sampled_from(finer).map(lambda n: n * active), min_size=1, max_size=2)


def _values(name: str) -> st.SearchStrategy[Any]:
    if name in ("beta1", "beta2", "momentum"):
        return st.lists(BETA, min_size=1, max_size=3, unique=True)
    low = st.integers(-20, 0)
    log2 = st.builds(lambda a, b, step: {"log2": [a, a + b], "step": step}, low, COUNT, st.sampled_from((0.5, 1.0)))
    return st.lists(POSITIVE, min_size=1, max_size=3, unique=True) | log2


def _hps(dotted: st.SearchStrategy[str]) -> st.SearchStrategy[Data]:
    scalar = POSITIVE | st.integers(-9, 3).map(lambda n: {"log2": n})
    return st.fixed_dictionaries(
        {"multipliers": st.dictionaries(dotted, POSITIVE, max_size=2)},
        optional={"init_scale": scalar, "residual_scale": scalar, "router_bias_lr": scalar},
    )
