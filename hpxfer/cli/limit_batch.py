"""The training that the options of `hpxfer limit` ask for: its batch, read from files or built in, and its LRs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpxfer.errors import HpxferError
from hpxfer.limit.given import Batch, Given, Loss
from hpxfer.limit.network import Network

STEPS, LR, SAMPLES = 5, 0.05, 8
MOST_STEPS, MOST_SAMPLES, MOST_CLASSES = 10**5, 10**5, 10**5


def given_of(asked: dict[str, Any], network: Network) -> Given:
    """Return the training. Raise HpxferError for files that are no batch."""
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
