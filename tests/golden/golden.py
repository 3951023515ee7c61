"""What must not move: `python tests/golden/golden.py` compares it with golden.json, `--write` renews that file.

Ids, tables, losses, verdicts, plans, recipes and exports, taken where a user sees them. Numbers are compared to 1e-5,
ids and counts exactly. `bits` is a digest of all digits, which holds for one type of CPU and one torch only.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import platform
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GOLDEN = HERE / "golden.json"
INPUTS = HERE / "inputs"
PUBLISHED = ROOT / "results" / "published"
# Sweeps are read from the top of the repository, from where their paths count.
SWEEPS = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "sweeps").rglob("*.yaml")
    # Not those that start from the recipe of a sweep that is not published. tests/docs holds the figures' to their ids.
    if "\nname:" in (text := "\n" + path.read_text()) and "results/chain-" not in text and "papers" not in path.parts
)
FOLDERS = sorted(path.name for path in PUBLISHED.iterdir() if (path / "trials.parquet").exists())
# Results with every statistic, and a recipe each: one HP, two HPs, the family mlp.
WHOLE = ("quickstart", "transfer", "lr_init", "routers-freeze-soft")
Golden = dict[str, Any]

# What of a verdict and of a plan is written out, by the last key of its path.
VERDICT = {
    *("axis", "parameterization", "verdict", "kind", "log2_value", "low_log2", "high_log2", "base_value"),
    *("lowest_loss", "regret_nats", "octaves", "low", "high", "transfer_chance", "num_seeds", "num_diverged"),
}
PLAN = {
    *("num_trials", "tokens", "flops", "num_stacks", "stack_size", "stack_bytes", "gpu_share", "params_total"),
    *("params_active", "width", "depth", "num_experts", "num_active", "expert_width", "batch_tokens", "steps"),
}


def hpxfer(*arguments: object) -> str:
    """Return what a command prints on stdout."""
    from hpxfer.cli import main

    out = io.StringIO()
    words = ["hpxfer", *map(str, arguments)]
    with mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(out), contextlib.chdir(ROOT):
        try:
            main()
        except SystemExit as end:
            if end.code not in (None, 0):
                raise RuntimeError(f"{' '.join(words)}: exit code {end.code}") from None
    return out.getvalue()


def condensed(data: Any, shown: Collection[str], *, whole: bool = True) -> Golden:
    """Return the leaves whose keys are `shown`, and a digest of all numbers if `whole`."""
    leaves, clear = list(_leaves(data)), defaultdict(list)
    for path, value in leaves:
        key = path.rpartition(".")[2].partition("[")[0]
        if key in shown:
            clear[key].append(float(f"{value:.8g}") if isinstance(value, float) else value)
    numbers = [(path, value) for path, value in leaves if not isinstance(value, str)]
    return {"shown": clear, **({"numbers": len(numbers), "bits": digest(numbers)} if whole else {})}


def _leaves(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _leaves(value, f"{path}.{key}" if isinstance(data, dict) else f"{path}[{key}]")
    else:
        yield path, data


def digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:16]


def published(name: str) -> Golden:
    """Return the digest of the stored results, and the verdicts."""
    frame = pd.read_parquet(PUBLISHED / name / "trials.parquet").sort_values("trial_id")
    losses = [f"{loss!r}" for loss in frame["validation_loss_nats"].tolist()]
    stored = {"trials": len(frame), "stored": digest([frame["trial_id"].tolist(), frame["status"].tolist(), losses])}
    return {
        **stored,
        **condensed(json.loads(hpxfer("report", PUBLISHED / name, "--format", "text", "--json")), VERDICT),
    }


def whole_report(name: str) -> Golden:
    """Return the digest of all numbers of the page, and of the recipe."""
    with tempfile.TemporaryDirectory() as folder:
        hpxfer("report", PUBLISHED / name, "--format", "json", "--output", folder)
        page = json.loads((Path(folder) / "report.json").read_text())
        hpxfer("recipe", "write", PUBLISHED / name, "--output", f"{folder}/recipe.yaml")
        recipe = yaml.safe_load((Path(folder) / "recipe.yaml").read_text())
    return {"page": condensed(page, ()), "recipe": condensed(recipe, {"lr", "value", "low", "high"})}


def planned(sweep: str) -> Golden:
    """Return the digest of all ids, and what the trials take on an H100."""
    with tempfile.TemporaryDirectory() as folder:
        plan = json.loads(hpxfer("plan", sweep, "--trials", "--json", "--results", folder, "--hardware", "h100"))
    trials = plan.pop("trials", None) or []
    ids = sorted(trial["trial_id"] for trial in trials)
    return {"num_ids": len(ids), "ids": digest(ids), **condensed(plan, PLAN, whole=False)}


def tables() -> Golden:
    """Return a digest, and a sum of logs, of the factors of 200 random shapes by table, convention and optimizer."""
    from hpxfer.errors import HpxferError
    from hpxfer.scaling.evaluate import parameterization
    from hpxfer.scaling.tables import PARAMETERIZATIONS

    rng, out = random.Random(0), {}
    pairs = [(_shape(rng), _shape(rng)) for _ in range(100)]
    for name in sorted(PARAMETERIZATIONS):
        conventions = parameterization(name).table.conventions
        for changed in [{}, *({key: value} for key, one in conventions.items() for value in one.values())]:
            for optimizer in parameterization(name).table.rows:
                with contextlib.suppress(HpxferError):  # two conventions may exclude each other
                    choice = parameterization(name, changed)
                    key = " ".join([name, *(f"{key}={value}" for key, value in changed.items()), optimizer])
                    out[key] = _sums([_factors(choice, optimizer, *pair) for pair in pairs])
    return out


def _factors(choice: Any, optimizer: Any, base: Any, target: Any) -> list[Any]:
    from hpxfer.scaling.evaluate import evaluate, evaluate_globals

    roles = sorted((role, asdict(one)) for role, one in evaluate(choice, base, target, optimizer).items())
    return [roles, asdict(evaluate_globals(choice, base, target))]


def _sums(found: list[Any]) -> Golden:
    numbers = [value for _, value in _leaves(found) if isinstance(value, float) and 0 < value < math.inf]
    total = sum((1 + place % 7) * math.log(value) for place, value in enumerate(numbers))
    return {"numbers": len(numbers), "sum": round(total, 4), "bits": digest(found)}


def _shape(rng: random.Random) -> Any:
    from hpxfer.scaling.shape import Shape

    num_active = rng.choice((1, 2, 4))
    return Shape(
        width=64 * rng.randint(1, 32),
        depth=rng.randint(1, 64),
        num_experts=num_active * rng.randint(1, 16),
        num_active=num_active,
        expert_width=16 * rng.randint(1, 64),
        head_dim=32,
        num_shared=1,
        shared_width=16 * rng.randint(1, 64),
        dense_width=64 * rng.randint(1, 64),
        batch_tokens=512 * rng.randint(1, 64),
        steps=rng.randint(1, 1000),
    )


GPT = """\
name: golden
model:
  family: gpt
  context: 16
  base: {width: 16, depth: 2, num_experts: 4, num_active: 2, expert_ratio: 1, head_dim: 8}
data: {source: "builtin:stdlib"}
training: {batch_tokens: 64, steps: 6, validation_tokens: 128}
parameterizations: [completep-moe, sp]
axes: {width: [16, 32]}
grid: {lr: [0.00390625, 0.03125]}
seeds: 1
"""
MLP = """\
name: golden
model: {family: mlp, gate: sigmoid, base: {width: 16, depth: 1, num_experts: 4, num_active: 2, expert_width: 8}}
data: {source: "builtin:shapes"}
training: {batch_samples: 16, validation_samples: 64, steps: 6, optimizer: sgd}
parameterizations: [mup-moe, sp]
axes: {width: [16, 32]}
grid: {lr: [0.125, 0.5]}
seeds: 1
"""
DIT = """\
name: golden
model:
  family: dit
  gate: normalized_sigmoid
  ffn: swiglu
  base: {width: 16, depth: 2, num_experts: 4, num_active: 2, expert_ratio: 1, head_dim: 8}
  dit: {patch: 4}
data: {source: "builtin:shapes"}
training: {batch_samples: 8, validation_samples: 16, steps: 6}
parameterizations: [complete-mue, sp]
axes: {width: [16, 32]}
grid: {lr: [0.00390625, 0.03125]}
seeds: 1
"""
AUX = {"hps": {"aux_weight": 0.01}}
PRESETS: dict[str, dict[str, Any]] = {"mixtral": AUX, "qwen3-moe": AUX, "olmoe": AUX, "glm4-moe": {}}
# What differs from one of the two sweeps.
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": (GPT, {}),
    **{f"gpt {gate}": (GPT, {"model.gate": gate}) for gate in ("sigmoid", "softmax", "normalized_sigmoid")},
    "gpt normalized_softmax": (GPT, {"model.gate": "normalized_softmax", "parameterizations": ["mup", "sp"]}),
    "gpt sgd": (GPT, {"training.optimizer": "sgd", "parameterizations": ["mup", "sp"]}),
    **{
        f"gpt like {preset}": (GPT, {"model.like": preset, "parameterizations": ["mup", "sp"], **hps})
        for preset, hps in PRESETS.items()
    },
    "gpt like nanogpt": (
        GPT,
        {
            "model.like": "nanogpt",
            "model.base": {"width": 16, "depth": 2, "head_dim": 8, "dense_ratio": 4},
            "parameterizations": ["completep", "sp"],
        },
    ),
    **{
        f"gpt {optimizer}": (GPT, {"training.optimizer": optimizer, "hps": {"adamw_lr": 0.015625}})
        for optimizer in ("muon", "muon[scale=match_rms_adamw,heads=split,router=muon]")
    },
    "gpt cosine": (GPT, {"training.schedule": {"decay": "cosine", "warmup": 2}, "training.gradient_clip": 1.0}),
    "dit": (DIT, {"model.dit.adaln_init": "random", "model.attention_gate": True}),
    "mlp": (MLP, {}),
    "mlp softmax": (MLP, {"model.gate": "softmax"}),
    "mlp adamw": (MLP, {"training.optimizer": "adamw"}),
}


def trained(name: str) -> Golden:
    """Return ids and losses of a small sweep."""
    from hpxfer.data import data_ref
    from hpxfer.spec import parse_sweep
    from hpxfer.train.trainer import train
    from hpxfer.trial import Expansion
    from hpxfer.trial.events import Ended
    from hpxfer.trial.stack import Stack

    text, changes = TRAINED[name]
    sweep = yaml.safe_load(text)
    for path, value in changes.items():
        *parts, last = path.split(".")
        section = sweep
        for part in parts:
            section = section[part]
        section[last] = value
    spec = parse_sweep(yaml.safe_dump(sweep))
    trials = {trial.id: trial for trial in Expansion(spec, data_ref(spec.data)).trials()}
    stacks: dict[Any, list[Any]] = {}
    for trial in trials.values():
        stacks.setdefault((trial.shape, trial.setting), []).append(trial)
    losses = {}
    for stack in stacks.values():
        *_, ended = train(Stack(trials=tuple(stack)), "cpu", determinism="strict")
        assert isinstance(ended, Ended)
        losses |= {
            found.trial_id: [found.validation_loss_nats, found.final_window_loss_nats] for found in ended.results
        }
    losses = dict(sorted(losses.items()))
    return {"ids": digest(list(losses)), "losses": list(losses.values()), "bits": digest(losses)}


SHAPE = {"width": 256, "depth": 4, "num_experts": 8, "num_active": 2, "expert_width": 256, "head_dim": 32}


def exported() -> Golden:
    """Return the numbers of every parameter, of a committed recipe at a larger shape, and of the roles by `explain`."""
    out = {}
    with tempfile.TemporaryDirectory() as folder:
        shape = Path(folder) / "shape.json"
        shape.write_text(json.dumps({**SHAPE, "num_active": 1, "num_experts": 4}))
        recipe = PUBLISHED / "quickstart" / "recipe.yaml"
        hpxfer("recipe", "export", recipe, "--to", "json", "--shape", shape, "--output", f"{folder}/json")
        out["json"] = condensed(json.loads((Path(folder) / "json" / "hpxfer.json").read_text()), {"lr", "init_std"})
        out["explain"] = condensed(
            json.loads(hpxfer("explain", "--recipe", recipe, "--target", shape, "--json")), {"lr"}
        )
        given = ("recipe", "predict", PUBLISHED / "quickstart", "--target", shape, "--json")
        out["predict"] = condensed(json.loads(hpxfer(*given)), {"loss", "low", "high"})
    return out


def judged() -> Golden:
    """Return the verdict on a table of foreign runs."""
    given = ("--map", "value=lr", "--map", "scale=width", "--map", "arm=table", "--control", "sp", "--base", "scale=64")
    return condensed(json.loads(hpxfer("judge", INPUTS / "runs.csv", *given, "--json")), VERDICT)


def checked(*arguments: str) -> Golden:
    """Return the slopes of a check, and what they are predicted to be."""
    return condensed(json.loads(hpxfer("check", *arguments, "--json")), {"slope", "predicted", "verdict", "passes"})


def solved(network: str) -> Golden:
    """Return the moments of an infinite network."""
    return condensed(json.loads(hpxfer("limit", INPUTS / network, "--json")), {"mean", "error"})


CHECKS = (
    (
        "--parameterization",
        "completep-moe",
        "--axis",
        "width",
        "--points",
        "16,32,64,128",
        "--seeds",
        "2",
        "--steps",
        "3",
    ),
    ("--parameterization", "mssp-ii", "--architecture", "mlp", "--seeds", "2", "--steps", "2"),
)
LIMITS = {
    "--regime I --parameterization mup": "regime_i.yaml",
    "--regime II --parameterization mssp": "regime_ii.yaml",
    "--regime III --parameterization mup": "regime_iii.yaml",
    "--regime residual --parameterization mup": "residual.yaml",
}
ITEMS: dict[str, Callable[[], Golden]] = {
    **{f"published {name}": partial(published, name) for name in FOLDERS},
    **{f"report {name}": partial(whole_report, name) for name in WHOLE},
    **{f"plan {sweep}": partial(planned, sweep) for sweep in SWEEPS},
    **{f"train {name}": partial(trained, name) for name in TRAINED},
    **{f"check {' '.join(given[:4])}": partial(checked, *given) for given in CHECKS},
    **{f"limit {name}": partial(solved, network) for name, network in LIMITS.items()},
    "tables": tables,
    "export": exported,
    "judge": judged,
}


def machine() -> dict[str, str]:
    """Return what bits depend on."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
    return {"cpu": cpu, "torch": torch.__version__}


def differences(old: Any, new: Any, *, bits: bool, path: str = "") -> Iterator[str]:
    """Yield where two golden data differ. Digests of all digits are compared with `bits` only."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            if key == "bits" and (not bits or key not in old):
                continue  # of another type of CPU than this one
            if key not in old or key not in new:
                yield f"{path}/{key}: {'new' if key in new else 'gone'}"
            else:
                yield from differences(old[key], new[key], bits=bits, path=f"{path}/{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from differences(before, after, bits=bits, path=f"{path}[{place}]")
    elif isinstance(old, float) and isinstance(new, float):
        # A slope of about zero is the rounding of the CPU alone.
        if not math.isclose(old, new, rel_tol=1e-5, abs_tol=1e-6 if "/slope" in path else 1e-9):
            yield f"{path}: was {old}, is {new}"
    elif old != new:
        yield f"{path}: was {old}, is {new}"


def item(name: str) -> Golden:
    """Return one item as JSON reads it."""
    return json.loads(json.dumps(ITEMS[name]()))


def compared(name: str) -> list[str]:
    """Return where an item differs from golden.json."""
    golden = json.loads(GOLDEN.read_text())
    return list(differences(golden["items"].get(name), item(name), bits=golden["machine"] == machine(), path=name))


def main() -> None:
    """Compare all items, or write them, in two processes."""
    names = [name for name in ITEMS if not sys.argv[1:] or sys.argv[1] == "--write" or sys.argv[1] in name]
    os.environ["OMP_NUM_THREADS"] = "1"  # as in `make test`: sums of several threads have other bits
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        if "--write" in sys.argv:
            found = dict(zip(names, pool.map(item, names), strict=True))
            GOLDEN.write_text(json.dumps({"machine": machine(), "items": found}, indent=0) + "\n")
            return
        wrong = [line for lines in pool.map(compared, names) for line in lines]
    sys.stdout.write("\n".join([*wrong, f"{len(names)} items, {len(wrong)} differences\n"]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
