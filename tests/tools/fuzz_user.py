"""Cases of a user's own trainer: sweeps drawn over all of its keys, legal or nearly so, of which most are mutated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import fuzz_mutate as mutate
import yaml

Maker = tuple[Sequence[str], Mapping[str, bytes]]
TRAIN = b"import json, sys\nconfig = json.load(open(sys.argv[1]))\n"
_OWN: tuple[Mapping[str, Any], ...] = (
    {"d_model": 64},
    {"d_model": 64, "n_layer": 2, "act": "gelu"},
    {"d_model": 64, "n_layer": 2, "tied": True, "dropout": 0.1, "ffn": 256},
    {"hidden": 16, "experts": 4, "top_k": 2, "ffn": 16, "heads": 2},
)
_DIMS = {
    "d_model": "width",
    "hidden": "width",
    "n_layer": "depth",
    "ffn": "expert_width",
    "experts": "num_experts",
    "top_k": "num_active",
    "heads": "num_heads",
}
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
    sweep: dict[str, Any] = {
        "name": "drawn",
        "trainer": trainer,
        "model": model,
        "training": training,
        "axes": axes,
        "grid": {"lr": pick(({"log2": [-9, -3]}, [0.01, 0.02]))},
        "seeds": pick((1, 2, [3, 5])),
    }
    if not of_own:
        sweep["parameterizations"] = pick((["sp"], ["completep", "sp"], ["mup", "completep-moe"]))
        if now_and_then():
            sweep["hps"] = {"multipliers": {"router.lr_mult": 2.0, "readout.init_mult": 0.5}}
    if now_and_then(0.3):
        sweep["judge"] = {"loss": "final_window"}
    if now_and_then(0.4):
        sweep["resources"] = pick(
            (
                {"executor": "local", "workers": 2},
                {"gpus_per_trial": 0.5},
                {"gpus_per_trial": 16, "gpus_per_node": 8},
                {"nodes_per_trial": 2},
                {"gpus_per_trial": 2, "cpus_per_stack": 4, "curves": "none"},
            )
        )
    if now_and_then():
        sweep["search"] = pick(({"kind": "verdict", "budget": 60}, {"kind": "random", "budget": 8}, {"kind": "grid"}))
    return sweep


def drawn(random: Random) -> Maker:
    """Return a plan of a drawn sweep, most often of one that is mutated."""
    text = yaml.safe_dump(user_sweep(random), sort_keys=False).encode()
    if random.random() < 0.7:
        text = mutate.of_yaml(text, random)
    commands: tuple[tuple[str, ...], ...] = (
        *[("plan", "sweep.yaml")] * 4,
        ("plan", "sweep.yaml", "--json", "--trials"),
        ("explain", "--sweep", "sweep.yaml"),
        ("report", "sweep.yaml"),
    )
    return random.choice(commands), {"sweep.yaml": text, "train.py": TRAIN}
