"""Cases of the family `mlp`: sweeps drawn over all its options, damaged files of samples, and two steps of training.

Most sweeps are legal or nearly so: a mutation of one sound sweep rarely gets past the first rule that it breaks.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import fuzz_mutate as mutate
import numpy as np
import yaml

Maker = tuple[Sequence[str], Mapping[str, bytes]]
# A command of the fuzz, as a plug-in.
TRAIN_FEW = Path(__file__).with_name("fuzz_train_few.py").read_bytes()
_BUILTIN = ("builtin:shapes", "builtin:teacher/network", "builtin:teacher/polynomial", "builtin:teacher/few")
_TABLES = ("sp", "mup", "mup-moe", "mup-i", "mup-ii", "mup-iii", "mssp-i", "mssp-ii", "mssp-iii")
_SHAPES = {
    "i": "{{width: {0}, expert_width: {1}}}",
    "ii": "{{width: {0}, num_experts: {2}}}",
    "iii": "{{width: {0}, expert_width: {1}, num_experts: {2}}}",
    "other": "{{width: {0}, depth: 2}}",
}


def sample_files() -> dict[str, bytes]:
    """Return small files of samples by name."""
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (120, 4, 5), dtype=np.uint8), np.arange(120) % 7
    real = rng.standard_normal((120, 6)).astype(np.float32)

    def npz(**arrays: Any) -> bytes:
        content = io.BytesIO()
        np.savez(content, **arrays)
        return content.getvalue()

    def idx(array: np.ndarray) -> bytes:
        head = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
        return head + array.astype(np.uint8).tobytes()

    return {
        "classes.npz": npz(x=real, y=labels),
        "two.npz": npz(x=real, y=labels % 2),
        "pixels.npz": npz(x_train=pixels, y_train=labels, x_test=pixels[:50], y_test=labels[:50]),
        "targets.npz": npz(x=real, y=real[:, :3]),
        "train-images-idx3-ubyte": idx(pixels),
        "train-labels-idx1-ubyte": idx(labels),
        "data_batch_1.bin": b"".join(bytes([k % 10]) + rng.bytes(3072) for k in range(60)),
    }


def source_of(name: str) -> str:
    """Return the source that reads one of the files."""
    if name.endswith(".npz"):
        return f"npz:{name}"
    return "cifar:." if name.endswith(".bin") else "idx:."


def mlp_sweep(random: Random) -> dict[str, Any]:
    """Return a small sweep of the family, most often a legal one."""
    pick, rarely = random.choice, random.random() < 0.1
    optimizer, experts = pick(("sgd", "adamw")), pick((1, 2, 3, 4, 4, 8))
    width, hidden = pick((1, 2, 3, 5, 8, 8, 16, 16, 33)), pick((1, 2, 3, 8, 8, 12))
    batch = pick((1, 2, 5, 20, 50, 50, 32))
    matrices = pick((1, 2, 2))
    source = pick((*_BUILTIN, *map(source_of, ("classes.npz", "two.npz", "pixels.npz", "targets.npz", "train-images"))))
    has_targets = "polynomial" in source or "targets" in source
    options = {
        "input_activation": pick(("linear", "relu", "gelu", "tanh")),
        "activation": pick(("linear", "relu", "gelu", "tanh")),
        "expert_matrices": matrices,
        "residual": pick((True, False)),
        "router_bias": pick(("none", "none", "fixed", "schedule", "learned", "learned_sgd")),
        "inverse_temperature": pick((1.0, 0.01, 4.0, 1e6)),
        "tied_experts": pick((True, False)),
        "loss": "squared_error" if has_targets != rarely else pick(("cross_entropy", "squared_error")),
    }
    gate = pick(("sigmoid", "softmax", "normalized_softmax", *["normalized_sigmoid"] * rarely))
    if rarely or gate == "sigmoid":
        options["aggregation"] = pick(("1/K", "1/M", *["none"] * rarely))
    if options["router_bias"] != "none":
        options["router_bias_std"] = pick((0, 0.02, 1, 100))
    model: dict[str, Any] = {"family": "mlp", "gate": gate, "mlp": options}
    size = {"expert_ratio": 1} if matrices == 1 else {"expert_width": hidden}
    active = pick((1, experts, experts, max(1, experts // 2)))
    model["base"] = {"width": width, "depth": pick((1, 1, 2, 3)), "num_experts": experts, "num_active": active, **size}
    if random.random() < 0.3:
        model["ties"] = pick(("index", "random", "fixed_bias"))
    if random.random() < 0.2:
        model["init"] = "constant"
    if random.random() < 0.2 and active < experts:
        model["balance"] = {"bias": pick(("sign", "proportional", "none"))}
    regime = pick(tuple(_SHAPES))
    of_optimizer = (*_TABLES, "ntp" if optimizer == "sgd" else "completep-moe")
    tables = [name for name in of_optimizer if name.rpartition("-")[2] == regime or random.random() < 0.3]
    training = {
        "batch_samples": batch,
        "validation_samples": batch * pick((1, 1, 2)),
        "steps": 2,
        "optimizer": optimizer,
    }
    if random.random() < 0.3:
        training |= pick(
            ({"gradient_clip": 1.0}, {"weight_decay": 0.1}, {"schedule": {"decay": "cosine", "warmup": 1}})
        )
    shapes = yaml.safe_load(_SHAPES[regime].format(2 * width, 2 * hidden, 2 * experts))
    if matrices == 1:
        shapes.pop("expert_width", None)
    judges = ("validation", "final_window")
    grid = {"lr": pick(({"log2": [-6, -2], "step": 2}, [1e-30, 0.1, 1e30], {"log2": [-1, 1]}))}
    sweep = {
        "name": "drawn",
        "model": model,
        "data": {"source": source, "epochs": pick((1, 100, 100, 100))},
        "training": training,
        "parameterizations": random.sample(tables or ["sp"], min(len(tables) or 1, pick((1, 2, 3)))),
        "axes": {"width": {"shapes": [shapes], "allow_kappa_change": pick((True, True, True, False))}},
        "grid": grid,
        "seeds": pick((1, 2)),
        "judge": {"loss": pick(judges)},
        "resources": {"executor": "local"},
    }
    if random.random() < 0.4:
        multipliers = ("readout.init_mult", "router.init_mult", "router.lr_mult", "embedding.forward_mult")
        sweep["hps"] = {"lr": 0.1, "multipliers": {pick(multipliers): pick((0, 1, 2, 1e6))}}
    return sweep


def drawn(random: Random) -> Maker:
    """Return a plan of a drawn sweep, or two steps of it: every plan that is accepted must train."""
    text = yaml.safe_dump(mlp_sweep(random), sort_keys=False).encode()
    if random.random() < 0.2:
        text = mutate.of_yaml(text, random)
    commands: tuple[tuple[str, ...], ...] = (
        *[("fuzz_train_few.py", "sweep.yaml")] * 6,
        ("plan", "sweep.yaml"),
        ("explain", "--sweep", "sweep.yaml"),
    )
    return random.choice(commands), {"sweep.yaml": text, "fuzz_train_few.py": TRAIN_FEW, **sample_files()}


def damaged_samples(random: Random) -> Maker:
    """Return a plan of a sweep whose file of samples is damaged, or what `hpxfer data info` says of the file."""
    files = sample_files()
    name = random.choice(sorted(files))
    files[name] = mutate.of_bytes(files[name], random)
    sweep = mlp_sweep(random) | {"data": {"source": source_of(name), "epochs": 100}}
    commands = (("plan", "sweep.yaml"), ("plan", "sweep.yaml"), ("data", "info", source_of(name)))
    return random.choice(commands), {"sweep.yaml": yaml.safe_dump(sweep).encode(), **files}
