"""Hypothesis strategies: random shapes and random legal sweeps."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from hpxfer.hps import MULTIPLIERS, SCALARS
from hpxfer.shape import Shape
from hpxfer.spec import SweepSpec
from hpxfer.spec.axes import DIMENSION
from hpxfer.spec.checks import RESERVED_NAMES

Data = dict[str, Any]

# YAML cannot hold a lone surrogate; everything else is fair, e.g. `1e5`, `yes`, quotes, line ends.
TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8) | st.sampled_from(
    ("1e5", "12e-3", "yes", "null", "2020-01-01", "0x1", ".inf", "~", "a: b", "- a", "#")
)
POSITIVE = st.floats(min_value=1e-12, max_value=1e3)
COUNT = st.integers(min_value=1, max_value=6)
# Roles that every built-in model has, whatever its options, and that start at random numbers.
DOTTED = st.builds(
    "{}.{}".format, st.sampled_from(("embedding", "attn_q", "router", "expert_out")), st.sampled_from(MULTIPLIERS)
)


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
        dense_width=optional,
        shared_width=optional,
    )


@st.composite
def sweeps(draw: st.DrawFn) -> SweepSpec:
    """Return a random legal sweep."""
    base = draw(_bases())
    context = draw(st.sampled_from((8, 32, 48)))
    batch_tokens = context * 32 * draw(COUNT)
    optimizer = draw(st.sampled_from(("adamw", "sgd")))
    scalars = [name for name in SCALARS if optimizer == "adamw" or name not in ("eps", "beta1", "beta2")]
    grid = draw(st.lists(st.sampled_from(scalars) | DOTTED, min_size=1, max_size=3, unique=True))
    product = len(grid) == 1 and draw(st.booleans())  # several must hold the base values, which tests of their own do
    hps = draw(_hps())
    if "lr" not in grid or (len(grid) > 1 and not product):
        hps["lr"] = draw(POSITIVE)
    return SweepSpec.model_validate(
        {
            "name": draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True).filter(_is_free)),
            "model": {
                "family": "gpt",
                "base": base,
                "context": context,
                "gate": draw(st.sampled_from(("sigmoid", "softmax"))),
                "tied_embeddings": draw(st.booleans()),
                "norm_gains": draw(st.booleans()),
                "biases": draw(st.booleans()),
                "init": draw(st.sampled_from(("fan_in", "constant"))),
                "embedding_std": draw(POSITIVE),
            },
            "data": draw(_data()),
            "training": draw(_trainings(batch_tokens)) | {"optimizer": optimizer},
            "parameterizations": ["sp"] if optimizer == "sgd" else draw(_parameterizations()),
            "axes": draw(_axes(base)),
            "hps": hps,
            "grid": {name: draw(_values(name)) for name in grid},
            "product": product,
            "seeds": draw(COUNT | st.lists(st.integers(0, 2**40), min_size=1, max_size=3, unique=True)),
            "judge": draw(st.fixed_dictionaries({}, optional={"hp": st.sampled_from(grid)})),
            "precision": draw(st.sampled_from(("float32", "bfloat16"))),
            "resources": draw(st.fixed_dictionaries({}, optional={"workers": COUNT, "stack_size": COUNT})),
        }
    )


def _is_free(name: str) -> bool:
    return name not in RESERVED_NAMES


@st.composite
def _bases(draw: st.DrawFn) -> Data:
    head_dim = draw(st.sampled_from((8, 16, 24)))
    width = head_dim * draw(COUNT)
    num_active = draw(COUNT)
    expert_width = 8 * draw(COUNT)
    size = draw(st.sampled_from(({"expert_width": expert_width}, {"expert_ratio": expert_width / width})))
    return {
        "width": width,
        "depth": draw(COUNT),
        "num_experts": num_active * draw(COUNT),
        "num_active": num_active,
        "head_dim": head_dim,
        **size,
    }


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
    schedule: Data = {"decay": decay, "warmup_steps": draw(st.integers(0, steps - decay_steps))}
    if decay == "wsd":
        schedule["decay_steps"] = decay_steps
    below_one = st.floats(0, 0.999)
    return {
        "batch_tokens": batch_tokens,
        **draw(st.sampled_from(({"steps": steps}, {"tokens": steps * batch_tokens}))),
        "betas": draw(st.tuples(below_one, below_one)),
        "eps": draw(POSITIVE),
        "weight_decay": draw(POSITIVE),
        "schedule": schedule,
        "validation_tokens": batch_tokens * draw(COUNT),
        **draw(st.fixed_dictionaries({}, optional={"gradient_clip": POSITIVE})),
    }


def _parameterizations() -> st.SearchStrategy[list[str | Data]]:
    conventions = st.fixed_dictionaries(
        {}, optional={"depth_alpha": st.floats(0.5, 0.99), "router_init_exponent": st.sampled_from((0.5, "inf"))}
    )
    moe = conventions.map(lambda chosen: {"name": "completep-moe", "conventions": chosen})
    return st.sampled_from(("sp", "completep-moe")).map(lambda one: [one]) | moe.map(lambda one: ["sp", one])


def _axes(base: Data) -> st.SearchStrategy[Data]:
    times = st.lists(COUNT, min_size=1, max_size=3)
    change = st.fixed_dictionaries(
        {},
        optional={
            "width": COUNT.map(lambda n: n * base["width"]),
            "depth": COUNT,
            "num_experts": COUNT.map(lambda n: n * base["num_experts"]),
            "expert_width": COUNT.map(lambda n: 8 * n),
        },
    )
    named = st.fixed_dictionaries(
        {"depth": times},
        optional={
            "width": times.map(lambda ns: [n * base["width"] for n in ns]),
            "experts": times.map(lambda ns: {"values": [n * base["num_experts"] for n in ns]}),
        },
    )
    name = TEXT.filter(lambda text: text not in DIMENSION)
    free = st.dictionaries(name, st.lists(change, min_size=1, max_size=3), min_size=1, max_size=2)
    return named | free


def _values(name: str) -> st.SearchStrategy[Any]:
    if name in ("beta1", "beta2"):
        return st.lists(st.floats(0, 0.999), min_size=1, max_size=3, unique=True)
    low = st.integers(-20, 0)
    log2 = st.builds(lambda a, b, step: {"log2": [a, a + b], "step": step}, low, COUNT, st.sampled_from((0.5, 1.0)))
    return st.lists(POSITIVE, min_size=1, max_size=3, unique=True) | log2


def _hps() -> st.SearchStrategy[Data]:
    scalar = POSITIVE | st.integers(-9, 3).map(lambda n: {"log2": n})
    return st.fixed_dictionaries(
        {"multipliers": st.dictionaries(DOTTED, POSITIVE, max_size=2)},
        optional={"init_scale": scalar, "residual_scale": scalar, "router_bias_lr": scalar},
    )
