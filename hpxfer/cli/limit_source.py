"""What `hpxfer limit` solves: reads the options and the batch, solves, and writes the files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, get_args

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.status import Status

from hpxfer.cli.options import read_hps
from hpxfer.cli.output import say
from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.host.output import spell_time
from hpxfer.host.output_folder import make_folder
from hpxfer.limit import network as words
from hpxfer.limit.given import Batch, Given, Loss
from hpxfer.limit.network import ROLES, Network
from hpxfer.limit.save import WHAT, save
from hpxfer.limit.solve import SEEDS, solve
from hpxfer.limit.text import Solved

if TYPE_CHECKING:
    from hpxfer.limit.against.report import Comparisons
    from hpxfer.limit.bias_rate import BiasRate

LONG_S = 60.0  # a solution of so many seconds says its time before it starts
STEPS, LR, SAMPLES = 5, 0.05, 8
MOST_STEPS, MOST_SAMPLES, MOST_CLASSES = 10**5, 10**5, 10**5
# Option -> the regimes that read it, and what it is by default there.
ONLY: dict[str, dict[str, Any]] = {
    "experts": {"I": 4},
    "matrices": {"I": 1},
    "kappa": {"II": 0.5, "III": 0.5, "residual": 0.5},
    "expert_width": {"II": 2, "residual": None},
    "iota": {"III": 0.25, "I": 0.25, "residual": 0.25},
    "depth": {"residual": 3},
    "bias": {"I": "none", "residual": "fixed"},
    "bias_std": {"I": 1.0, "residual": 1.0},
}
LEGAL: dict[str, tuple[str, ...]] = {
    "regime": words.REGIMES,
    "parameterization": get_args(words.Style),
    "loss": get_args(Loss),
    "gate": get_args(words.Gate),
    "activation": get_args(words.Activation),
    "input_activation": get_args(words.Activation),
    "aggregation": get_args(words.Aggregation),
    "bias": get_args(words.RouterBias),
}


def limit(
    asked: dict[str, Any], sites: int | None, seeds: int | None, output: Path | None
) -> tuple[Solved, list[Path]]:
    """Return what was solved, and the files written to `output`."""
    network = _network(asked)
    given = _given(asked, network)
    if output is not None:
        make_folder(output, WHAT)  # fails now, and not after minutes of solving
    with Console(stderr=True).status("solving") as status:
        on_start = partial(_started, status, "solving")
        found = solve(network, given, sites=sites, seeds=SEEDS if seeds is None else seeds, on_start=on_start)
    solved = Solved(network=network, given=given, limit=found)
    return solved, [] if output is None else _write(solved, output)


class Answer(Protocol):
    """What each question of the command is answered with."""

    @property
    def cautions(self) -> tuple[str, ...]: ...

    def to_dict(self) -> dict[str, Any]: ...

    def table(self) -> str: ...


def against(folder: str, options: dict[str, Any], output: Path | None) -> tuple[Comparisons, list[Path]]:
    """Return the networks of a results folder beside their limits, and the files written to `output`."""
    from hpxfer.limit.against import against as compare
    from hpxfer.results import load_results

    if output is not None:
        make_folder(output, WHAT)
    results = load_results(folder)
    given = {name: value for name, value in options.items() if value is not None}
    with Console(stderr=True).status("solving") as status:
        found = compare(results, **given, on_limit=partial(_started, status))
    if output is None:
        return found, []
    from hpxfer.limit.against.figure import against_figures

    return found, save(output, found.table(), found.to_dict(), against_figures(found.arms))


def _started(status: Status, name: str, seconds: float) -> None:
    """Say what is solved and, if it takes long, about how long."""
    status.update(name)
    if seconds >= LONG_S:
        say(f"{name}: about {spell_time(seconds)} on one core", err=True)


def bias_rate(repeats: int | None, output: Path | None) -> tuple[BiasRate, list[Path]]:
    """Return the simulation of the bias rate, and the files written to `output`."""
    from hpxfer.limit.bias_rate import BiasRateOptions
    from hpxfer.limit.bias_rate import bias_rate as simulate

    if output is not None:
        make_folder(output, WHAT)
    with Console(stderr=True).status("simulating"):
        found = simulate(BiasRateOptions() if repeats is None else BiasRateOptions(repeats=repeats))
    if output is None:
        return found, []
    from hpxfer.limit.bias_rate_figure import bias_rate_figure

    return found, save(output, found.table(), found.to_dict(), {"bias-rate": bias_rate_figure(found)})


def _network(asked: dict[str, Any]) -> Network:
    for option, legal in LEGAL.items():
        if asked[option] is not None and asked[option] not in legal:
            raise HpxferError(
                f"--{option.replace('_', '-')}: got {shown(asked[option])}; {nearest(asked[option], legal)}"
            )
    regime = asked["regime"]
    if regime is None or asked["parameterization"] is None:
        lacks = "--regime" if regime is None else "--parameterization"
        raise HpxferError(f"limit: needs --regime and --parameterization, or --against, or --bias-rate; got no {lacks}")
    values = {option: _of_regime(option, asked[option], regime) for option in ONLY}
    gate: words.Gate = asked["gate"] or "sigmoid"
    init, lr_mult = _constants(asked["hp"] or ())
    if regime == "residual":
        init = {"router": 0.0, **init}  # as the paper starts it
    if values["matrices"] not in (1, 2, None):
        raise HpxferError(f"--matrices: must be 1 or 2, got {values['matrices']}")
    _require_read(asked, values, init, lr_mult)
    if regime == "I" and values["matrices"] == 1 and asked["iota"] is not None:
        raise HpxferError(
            "--iota: an expert with one matrix has the width of the model; leave it out, or give --matrices 2"
        )
    return Network(
        regime=regime,
        parameterization=asked["parameterization"],
        gate=gate,
        activation=asked["activation"] or "linear",
        input_activation=asked["input_activation"] or "linear",
        aggregation=asked["aggregation"] or ("1/K" if gate == "sigmoid" else "none"),
        num_experts=values["experts"],
        expert_matrices=values["matrices"] or 2,
        expert_ratio=1.0 if values["iota"] is None else values["iota"],
        expert_width=values["expert_width"],
        experts_per_width=1.0 if values["kappa"] is None else values["kappa"],
        depth=1 if values["depth"] is None else values["depth"],
        router_bias=values["bias"] or "none",
        router_bias_std=1.0 if values["bias_std"] is None else values["bias_std"],
        init_mult=init,
        lr_mult=lr_mult,
        **_active(asked["top_k"], regime, values["experts"]),
    )


def _require_read(asked: dict[str, Any], values: dict[str, Any], init: dict[Any, float], lr: dict[Any, float]) -> None:
    """Raise HpxferError for constants of what the network does not have: they would change nothing."""
    if asked["bias_std"] is not None and values["bias"] == "none":
        raise HpxferError("--bias-std: the router has no bias; leave it out, or give --bias fixed")
    if "router_bias" in init:
        raise HpxferError("--hp router_bias: its multipliers of the start are not read; the std is --bias-std")
    if "router_bias" in lr and (asked["regime"], values["bias"]) != ("I", "learned"):
        raise HpxferError("--hp router_bias.lr_mult: read in regime I with --bias learned alone; leave it out")
    if values["matrices"] == 1 and "expert_in" in {*init, *lr}:
        raise HpxferError("--hp expert_in: an expert with one matrix has expert_out alone; or give --matrices 2")


def _of_regime(option: str, value: Any, regime: str) -> Any:
    """Return an option that only some regimes read, or its default there."""
    if regime in ONLY[option]:
        return ONLY[option][regime] if value is None else value
    if value is not None:
        *others, last = ONLY[option]
        readers = f"{', '.join(others)} and {last}" if others else last
        name = f"--{option.replace('_', '-')}"
        raise HpxferError(f"{name}: read in regime {readers}, got regime {regime}; leave it out")
    return None


def _active(top_k: float | None, regime: str, experts: int | None) -> dict[str, Any]:
    """Return which experts are active, as a number in regime I and as a share elsewhere."""
    if top_k is None:
        return {}
    if regime != "I" or experts is None:
        if not 0 < top_k <= 1:
            raise HpxferError(f"--top-k: must be the share of active experts, above 0 and at most 1, got {top_k:g}")
        return {"active_share": top_k}
    number = top_k * experts if top_k < 1 else top_k
    if not 1 <= number <= experts or number != round(number):
        raise HpxferError(
            f"--top-k: must be a whole number of the {experts} experts, or a share of them, got {top_k:g}"
        )
    return {"num_active": round(number)}


def _constants(given: Any) -> tuple[dict[Any, float], dict[Any, float]]:
    """Return the factors of init std and of LR by role. A forward multiplier m is the factors m and m^2."""
    init: dict[Any, float] = {}
    lr: dict[Any, float] = {}
    legal = [f"{role}.{kind}" for role in ROLES for kind in ("init_mult", "lr_mult", "forward_mult")]
    for name, value in read_hps(given).items():
        if name not in legal:
            raise HpxferError(f"--hp: unknown multiplier {shown(name)}; {nearest(name, legal)}")
        role, _, kind = name.partition(".")
        if kind != "lr_mult":
            init[role] = init.get(role, 1.0) * value
        if kind != "init_mult":
            lr[role] = lr.get(role, 1.0) * (value * value if kind == "forward_mult" else value)  # inf is refused later
    return init, lr


def _given(asked: dict[str, Any], network: Network) -> Given:
    steps = STEPS if asked["steps"] is None else asked["steps"]
    if not 0 <= steps <= MOST_STEPS:
        raise HpxferError(f"--steps: must be from 0 to {MOST_STEPS}, got {steps}")
    loss: Loss = asked["loss"] or "squared_error"
    batch = _batch(asked, loss)
    classes = int(batch.targets.max()) + 1 if loss == "cross_entropy" and batch.targets.size else 0
    lr = LR if asked["lr"] is None else asked["lr"]
    given = Given.full_batch(batch, steps=steps, lr=lr, loss=loss, num_classes=max(classes, 2))
    if network.regime != "I" or network.router_bias == "none":
        return given
    rng, num_experts = np.random.default_rng(0), network.num_experts or 0
    rows = 1 if network.router_bias in ("fixed", "learned") else steps + 1
    drawn = network.router_bias_std * rng.standard_normal((rows, num_experts))
    return replace(given, router_bias=np.broadcast_to(drawn, (steps + 1, num_experts)))


def _batch(asked: dict[str, Any], loss: Loss) -> Batch:
    inputs, targets, samples = asked["inputs"], asked["targets"], asked["samples"]
    if (inputs is None) != (targets is None):
        raise HpxferError(
            f"--{'targets' if targets is None else 'inputs'}: --inputs and --targets go together; give both"
        )
    if inputs is None:
        if loss == "cross_entropy":
            raise HpxferError("--loss: the built-in batch has real targets; give --inputs and --targets with classes")
        return _built_in(SAMPLES if samples is None else samples)
    if samples is not None:
        raise HpxferError("--samples: belongs to the built-in batch; leave it out, or leave out --inputs and --targets")
    x, y = _read("--inputs", inputs), _read("--targets", targets)
    if x.ndim == 1:
        raise HpxferError(f"--inputs: must be [samples, features], got shape {list(x.shape)} in {inputs}")
    y = y[:, None] if y.ndim == 1 else y
    targets_of = _classes(y, targets) if loss == "cross_entropy" else y.astype(np.float64)
    return Batch(inputs=x.astype(np.float64), targets=targets_of)


def _classes(y: NDArray[Any], path: Path) -> NDArray[np.int64]:
    """Return the classes [samples] that numbers [samples, 1] are. Raise HpxferError if they are none."""
    if y.shape[1] != 1:
        raise HpxferError(
            f"--targets: must hold one class per sample under cross entropy, got shape {list(y.shape)} in {path}; take "
            "the argmax of targets that are one-hot"
        )
    legal = (y == np.round(y)) & (y >= 0) & (y < MOST_CLASSES)
    if not legal.all():
        raise HpxferError(
            f"--targets: must be whole numbers from 0 to {MOST_CLASSES - 1}, the classes, got {y[~legal][0]} in {path}"
        )
    return y[:, 0].astype(np.int64)


def _built_in(samples: int) -> Batch:
    """Return the first samples of builtin:teacher/polynomial: 20 inputs, and a polynomial of degree 4."""
    from hpxfer.data.samples.teacher import polynomial

    if not 1 <= samples <= MOST_SAMPLES:
        raise HpxferError(f"--samples: must be from 1 to {MOST_SAMPLES}, got {samples}")
    x, y = polynomial("train 0", 0, samples, ())
    return Batch(inputs=x.astype(np.float64), targets=y.astype(np.float64))


def _read(option: str, path: Path) -> NDArray[Any]:
    """Return the array of a .npy file. Raise HpxferError if it is none, or holds no numbers."""
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except OSError as error:
        raise HpxferError(f"{option}: {path} cannot be read: {error.strerror or error}; name a .npy file") from None
    except (ValueError, EOFError) as error:
        # What is no .npy file counts as a pickle to numpy, which then advises to load it unsafely.
        why = "got another kind of file" if "pickle" in str(error) else str(error).splitlines()[0]
        raise HpxferError(f"{option}: {path} must be a .npy file of numbers: {why}") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        kind = getattr(array, "dtype", "an archive of arrays")
        raise HpxferError(f"{option}: {path} must hold one array of real numbers, got {kind}")
    if array.ndim not in (1, 2):
        raise HpxferError(f"{option}: {path} must have one or two dimensions, got shape {list(array.shape)}")
    return array


def _write(solved: Solved, folder: Path) -> list[Path]:
    """Write limit.txt, limit.json and the figure to a folder, and return their paths."""
    from hpxfer.limit.figure import draw_limit, limit_info

    return save(folder, solved.table(), solved.to_dict(), {"limit": draw_limit(limit_info(solved))})
