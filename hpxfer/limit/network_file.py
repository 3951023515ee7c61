"""Network files: which infinite network is solved, and its training, in YAML. Sections are those of a sweep file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpxfer.data import polynomial
from hpxfer.errors import HpxferError, nearest
from hpxfer.limit.network import ROLES, Batch, Gate, Given, Loss, Network, Regime, Role, Style
from hpxfer.spec import (
    LEARNED,
    WHOLE,
    Count,
    KeyPath,
    MLPSpec,
    NotNegative,
    Positive,
    Section,
    YamlFile,
    read_yaml,
    validated,
)

MOST_CLASSES = 10**5


class BaseSizes(Section):
    """One network of the path. The regime says which of its sizes grow, and the others stay."""

    width: Count
    depth: Count = 1
    num_experts: Count
    num_active: Count
    expert_ratio: Positive | None = None
    expert_width: Count | None = None


class ModelSection(Section):
    """As in a sweep file."""

    family: Literal["mlp"] = "mlp"
    base: BaseSizes
    gate: Gate = "sigmoid"
    mlp: MLPSpec = MLPSpec()


class HPsSection(Section):
    """The base LR, which the table scales, and multipliers over Table B.1, by role."""

    lr: NotNegative = 0.05
    multipliers: dict[str, NotNegative] = Field(default_factory=dict)


class TrainingSection(Section):
    """Updates of plain SGD on one batch."""

    steps: Annotated[int, Field(ge=0, le=10**5), WHOLE] = 5


class DataSection(Section):
    """Two .npy files, or so many samples of builtin:teacher/polynomial."""

    inputs: str | None = None
    targets: str | None = None
    samples: Annotated[int, Field(ge=1, le=10**5), WHOLE] | None = None


class NetworkFile(Section):
    """A network file. `regime` and `parameterization` name the limit, and the rest is a sweep's own sections."""

    regime: Regime
    parameterization: Style
    model: ModelSection
    hps: HPsSection = HPsSection()
    training: TrainingSection = TrainingSection()
    data: DataSection = DataSection()


def load_network(path: Path) -> tuple[Network, Given]:
    """Return the network of a file and its training. Files of samples start at the folder of the network file."""
    file = read_yaml(path)
    if not isinstance(file.data, dict):
        got = "an empty file" if file.data is None else type(file.data).__name__
        raise HpxferError(f"{path}: must be a mapping with regime, parameterization and model, got {got}")
    found = validated(NetworkFile, file)
    return network_of(file, found), given_of(file, found, path.parent)


def network_of(file: YamlFile, found: NetworkFile) -> Network:
    """Return the network. Raise HpxferError for keys that the regime does not read."""
    base, gate, given = found.model.base, found.model.gate, found.model.mlp
    mlp = given.setting(gate_sums_to_one=gate != "sigmoid")
    regime: Regime = "residual" if mlp.residual and found.regime == "III" else found.regime
    ratio = base.expert_width / base.width if base.expert_ratio is None and base.expert_width else base.expert_ratio
    width = base.expert_width or round((ratio or 0) * base.width)
    none_or_both = (base.expert_ratio is None) == (base.expert_width is None)
    too_many, without_bias = base.num_active > base.num_experts, mlp.router_bias == "none"
    for section, key, broken, rule in (
        ("base", "expert_ratio", none_or_both, "give it, or expert_width"),
        ("base", "expert_ratio", regime == "II" and not width, f"regime II needs N_e of at least 1, got {ratio}"),
        ("base", "num_active", too_many, f"must be at most num_experts, got {base.num_active}"),
        ("base", "depth", base.depth > 1 and regime != "residual", f"must be 1 in regime {regime}, got {base.depth}"),
        ("base", "expert_ratio", mlp.expert_matrices == 1 and ratio != 1, "must be 1 where an expert has one matrix"),
        ("mlp", "residual", mlp.residual and regime != "residual", f"not read in regime {regime}"),
        ("mlp", "tied_experts", mlp.tied_experts, "not read: parameterization mssp ties them in regime III"),
        ("mlp", "router_bias_std", without_bias and "router_bias_std" in given.model_fields_set, "needs router_bias"),
    ):
        _require(not broken, file, ("model", section, key), rule)
    many = regime != "I"
    share = base.num_active / base.num_experts
    fixed = base.expert_width if regime == "residual" else None  # what is given as a width stays
    init, rate = _multipliers(file, found)
    return Network(
        regime=regime,
        parameterization=found.parameterization,
        gate=gate,
        activation=mlp.activation,
        input_activation=mlp.input_activation,
        aggregation=mlp.aggregation,
        inverse_temperature=mlp.inverse_temperature,
        num_experts=None if many else base.num_experts,
        num_active=None if many or share == 1 else base.num_active,
        expert_matrices=1 if mlp.expert_matrices == 1 else 2,
        active_share=share if many else 1.0,
        expert_ratio=1.0 if ratio is None or regime == "II" or fixed else ratio,
        expert_width=width if regime == "II" else fixed,
        experts_per_width=base.num_experts / base.width if many else 1.0,
        depth=base.depth,
        router_bias="learned" if mlp.router_bias == "learned_sgd" else mlp.router_bias,
        router_bias_std=mlp.router_bias_std,
        init_mult=init,
        lr_mult=rate,
    )


def _require(legal: bool, file: YamlFile, at: KeyPath, rule: str) -> None:
    if not legal:
        raise HpxferError(f"{file.where(at)}: {rule}")


def _multipliers(file: YamlFile, found: NetworkFile) -> tuple[dict[Role, float], dict[Role, float]]:
    """Return the factors of init std and of LR by role. A forward multiplier m is the factors m and m^2."""
    mlp, kinds = found.model.mlp, ("init_mult", "lr_mult", "forward_mult")
    legal: dict[str, tuple[Role, str]] = {
        f"{role}.{kind}": (role, kind) for role in ROLES for kind in kinds if role != "router_bias"
    }
    if mlp.expert_matrices == 1:
        legal = {name: part for name, part in legal.items() if part[0] != "expert_in"}
    if mlp.router_bias in LEARNED and found.regime == "I":
        legal["router_bias.lr_mult"] = ("router_bias", "lr_mult")
    residual = found.regime == "residual" or mlp.residual
    init: dict[Role, float] = {"router": 0.0} if residual else {}  # as CompleteP starts it
    rate: dict[Role, float] = {}
    for name, value in found.hps.multipliers.items():
        if name not in legal:
            at = file.where(("hps", "multipliers", name))
            raise HpxferError(f"{at}: unknown multiplier of this network; {nearest(name, legal)}")
        role, kind = legal[name]
        if kind != "lr_mult":
            init[role] = value * (1.0 if kind == "init_mult" and residual and role == "router" else init.get(role, 1.0))
        if kind != "init_mult":  # an infinite one is refused later
            rate[role] = rate.get(role, 1.0) * (value * value if kind == "forward_mult" else value)
    return init, rate


def given_of(file: YamlFile, found: NetworkFile, folder: Path) -> Given:
    """Return the training. Raise HpxferError for files that are no batch."""
    data, loss, steps = found.data, found.model.mlp.loss, found.training.steps
    x: NDArray[Any]
    y: NDArray[Any]
    if data.inputs is None and data.targets is None:
        _require(loss == "squared_error", file, ("model", "mlp", "loss"), "must be squared_error without data.inputs")
        x, y = polynomial("train 0", 0, data.samples or 8, ())
    else:
        paths = {name: path for name in ("inputs", "targets") if (path := getattr(data, name)) is not None}
        _require(len(paths) == 2, file, ("data",), "inputs and targets go together")
        _require(data.samples is None, file, ("data", "samples"), "belongs to the built-in batch, got inputs too")
        x, y = (_read(file.where(("data", name)), folder / path) for name, path in paths.items())
    batch = _batch(file.where(("data", "targets")), x, y, loss)
    classes = int(batch.targets.max()) + 1 if loss == "cross_entropy" and batch.targets.size else 0
    bias = None
    if found.regime == "I" and (kind := found.model.mlp.router_bias) != "none":
        num_experts, rows = found.model.base.num_experts, steps + 1 if kind == "schedule" else 1
        drawn = found.model.mlp.router_bias_std * np.random.default_rng(0).standard_normal((rows, num_experts))
        bias = np.broadcast_to(drawn, (steps + 1, num_experts))
    given = Given.full_batch(batch, steps=steps, lr=found.hps.lr, loss=loss, num_classes=max(classes, 2))
    return replace(given, router_bias=bias)


def _batch(where: str, x: NDArray[Any], y: NDArray[Any], loss: Loss) -> Batch:
    """Return the samples of two arrays. Classes are whole numbers, one per sample."""
    y = y[:, None] if y.ndim == 1 else y
    if loss == "cross_entropy":
        if y.shape[1] != 1:
            raise HpxferError(f"{where}: must hold one class per sample under cross entropy, got shape {list(y.shape)}")
        legal = (y == np.round(y)) & (y >= 0) & (y < MOST_CLASSES)
        if not legal.all():
            raise HpxferError(
                f"{where}: must be whole numbers from 0 to {MOST_CLASSES - 1}, the classes, got {y[~legal][0]}"
            )
        y = y[:, 0].astype(np.int64)
    return Batch(inputs=x, targets=y)


def _read(where: str, path: Path) -> NDArray[Any]:
    """Return the array of a .npy file. Raise HpxferError if it is none, or holds no numbers."""
    try:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except OSError as error:
        raise HpxferError(f"{where}: {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        # What is no .npy file counts as a pickle to numpy, which then advises to load it unsafely.
        why = "got another kind of file" if "pickle" in str(error) else str(error).splitlines()[0]
        raise HpxferError(f"{where}: {path} must be a .npy file of numbers: {why}") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub" or array.ndim not in (1, 2):
        got = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else "an archive of arrays"
        raise HpxferError(f"{where}: {path} must hold one array of real numbers with one or two dimensions, got {got}")
    return array
