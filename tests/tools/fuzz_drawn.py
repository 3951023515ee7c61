"""Sweeps drawn over all options of the family `mlp`, with damaged files of samples and two steps of training, and over
all keys of a user's own trainer.

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

Drawn = tuple[Sequence[str], Mapping[str, bytes]]
# What reads a sweep, the plan most often.
PLANS = (
    *[("plan", "sweep.yaml")] * 4,
    ("plan", "sweep.yaml", "--json", "--trials"),
    ("explain", "--sweep", "sweep.yaml"),
    ("report", "sweep.yaml"),
)
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
    training = {"batch_samples": batch, "validation_samples": batch * pick((1, 1, 2)), "steps": 2}
    training["optimizer"] = optimizer
    if random.random() < 0.3:
        training |= pick(
            ({"gradient_clip": 1.0}, {"weight_decay": 0.1}, {"schedule": {"decay": "cosine", "warmup": 1}})
        )
    shapes = yaml.safe_load(_SHAPES[regime].format(2 * width, 2 * hidden, 2 * experts))
    if matrices == 1:
        shapes.pop("expert_width", None)
    lrs = pick(({"log2": [-6, -2], "step": 2}, [1e-30, 0.1, 1e30], {"log2": [-1, 1]}))
    sweep = {
        "name": "drawn",
        "model": model,
        "data": {"source": source, "epochs": pick((1, 100, 100, 100))},
        "training": training,
        "parameterizations": random.sample(tables or ["sp"], min(len(tables) or 1, pick((1, 2, 3)))),
        "axes": {"width": {"shapes": [shapes], "allow_kappa_change": pick((True, True, True, False))}},
        "grid": {"lr": lrs},
        "seeds": pick((1, 2)),
        "judge": {"loss": pick(("validation", "final_window"))},
        "resources": {"executor": "local"},
    }
    if random.random() < 0.4:
        multipliers = ("readout.init_mult", "router.init_mult", "router.lr_mult", "embedding.forward_mult")
        sweep["hps"] = {"lr": 0.1, "multipliers": {pick(multipliers): pick((0, 1, 2, 1e6))}}
    return sweep


def drawn_mlp(random: Random) -> Drawn:
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


def damaged_samples(random: Random) -> Drawn:
    """Return a plan of a sweep whose file of samples is damaged, or what `hpxfer data info` says of the file."""
    files = sample_files()
    name = random.choice(sorted(files))
    files[name] = mutate.of_bytes(files[name], random)
    sweep = mlp_sweep(random) | {"data": {"source": source_of(name), "epochs": 100}}
    commands = (("plan", "sweep.yaml"), ("plan", "sweep.yaml"), ("data", "info", source_of(name)))
    return random.choice(commands), {"sweep.yaml": yaml.safe_dump(sweep).encode(), **files}


TRAIN = b"import json, sys\nconfig = json.load(open(sys.argv[1]))\n"
_OWN: tuple[Mapping[str, Any], ...] = (
    {"d_model": 64},
    {"d_model": 64, "n_layer": 2, "act": "gelu"},
    {"d_model": 64, "n_layer": 2, "tied": True, "dropout": 0.1, "ffn": 256},
    {"hidden": 16, "experts": 4, "top_k": 2, "ffn": 16, "heads": 2},
)
_DIMS = {"d_model": "width", "hidden": "width", "n_layer": "depth", "ffn": "expert_width"}
_DIMS |= {"experts": "num_experts", "top_k": "num_active", "heads": "num_heads"}
_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("python3", "train.py", "{config_json}"),
    ("torchrun", "--nproc-per-node", "{gpus}", "train.py", "--lr", "{hp.lr}", "--seed={seed}", "{{x}}"),
    ("python3", "train.py", "{shape.d_model}", "{arg.power}", "{run_dir}"),
)


def user_sweep(random: Random) -> dict[str, Any]:
    """Return a small sweep of a user's own trainer, most often a legal one."""
    pick = random.choice

    def now_and_then(share: float = 0.2) -> bool:
        return random.random() < share

    own = dict(pick(_OWN))
    names = [name for name, value in own.items() if isinstance(value, int) and not isinstance(value, bool)]
    trainer: dict[str, Any] = {"args": pick(({}, {"power": 1, "deep": {"list": [1, None, "x"]}}))}
    if now_and_then(0.3):
        trainer["function"] = "train:train"
    else:
        trainer["command"] = list(pick(_COMMANDS))
    if now_and_then(0.5):
        trainer["files"] = pick((["train.py"], ["*.py"], ["**/*.py", "train.py"]))
    if now_and_then(0.5) or "files" not in trainer:
        trainer["version"] = pick(("1", "dev", "2026-11-22"))
    of_own = now_and_then(0.5)
    if of_own:
        trainer["arms"] = {"scaled": {"args": {"power": 1}}, "plain": {"args": {"power": 0}}}
        if now_and_then(0.7):
            trainer["control"] = "plain"
    if now_and_then():
        trainer["timeouts"] = pick(({"silence_s": 5}, {"start_s": 1.5, "wall_s": 1e6, "grace_s": 0}))
    if now_and_then():
        trainer["loss"] = pick(({"name": "eval", "unit": "bits per byte"}, {"unit": "squared error"}))
    if now_and_then():
        trainer["cost"] = {"seconds_per_trial": pick((12.5, {"d_model=64": 3, "d_model=128": 1e9}, {"d_model=64": 1}))}
    if now_and_then():
        trainer |= pick(({"nan_exit": ["nan|inf"]}, {"env": ["WANDB_MODE"]}, {"data": "set@2"}))
    model: dict[str, Any] = {"family": "user", "own": own}
    if not of_own or now_and_then():
        model["dims"] = {_DIMS[name]: name for name in names if name in _DIMS} | pick(({}, {"head_dim": 8}))
    batch: dict[str, Any] = pick(({}, {"batch_tokens": 512}, {"batch_samples": 8}))
    training: dict[str, Any] = {"steps": pick((20, 40)), **batch}
    if now_and_then():
        training |= pick(({"schedule": {"decay": "cosine", "warmup": 2}}, {"optimizer": "sgd"}))
    name = pick(names)
    axes: dict[str, Any] = {name: [2 * own[name], 4 * own[name]]}
    if now_and_then(0.4):
        axes["size"] = {"shapes": [{"own": {each: 2 * own[each] for each in names}}], "scale": pick(names)}
    if now_and_then():
        axes["steps"] = [40, 80]
    if now_and_then() and "batch_tokens" in training:
        axes["batch"] = {"shapes": [{"batch_tokens": 1024, "steps": 10}]}
    sweep: dict[str, Any] = {"name": "drawn", "trainer": trainer, "model": model, "training": training, "axes": axes}
    sweep |= {"grid": {"lr": pick(({"log2": [-9, -3]}, [0.01, 0.02]))}, "seeds": pick((1, 2, [3, 5]))}
    if not of_own:
        sweep["parameterizations"] = pick((["sp"], ["completep", "sp"], ["mup", "completep-moe"]))
        if now_and_then():
            sweep["hps"] = {"multipliers": {"router.lr_mult": 2.0, "readout.init_mult": 0.5}}
    if now_and_then(0.3):
        sweep["judge"] = {"loss": "final_window"}
    if now_and_then(0.4):
        gpus = ({"gpus_per_trial": 0.5}, {"gpus_per_trial": 16, "gpus_per_node": 8}, {"nodes_per_trial": 2})
        some = {"gpus_per_trial": 2, "cpus_per_stack": 4, "curves": "none"}
        sweep["resources"] = pick(({"executor": "local", "workers": 2}, *gpus, some))
    if now_and_then():
        sweep["search"] = pick(({"kind": "verdict", "budget": 60}, {"kind": "random", "budget": 8}, {"kind": "grid"}))
    return sweep


def drawn_user(random: Random) -> Drawn:
    """Return a plan of a drawn sweep, most often of one that is mutated."""
    text = yaml.safe_dump(user_sweep(random), sort_keys=False).encode()
    if random.random() < 0.7:
        text = mutate.of_yaml(text, random)
    return random.choice(PLANS), {"sweep.yaml": text, "train.py": TRAIN}
