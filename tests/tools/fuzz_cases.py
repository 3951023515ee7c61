"""Cases: the commands of a fuzz with the files that each of them reads. A case follows from the seed and its number.

The sound files that are mutated are made without training, by real code.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import click
import fuzz_drawn as drawn
import fuzz_mutate as mutate
import typer

RESULTS = "results/tiny"
TINY = b"""\
name: tiny
model:
  family: gpt
  base: {width: 16, depth: 1, num_experts: 2, num_active: 1, expert_ratio: 1, head_dim: 8}
  context: 16
data: {source: "builtin:stdlib"}
training: {batch_tokens: 64, steps: 60, validation_tokens: 128}
parameterizations: [completep-moe, sp]
axes:
  width: [16, 32, 64]
grid:
  lr: {log2: [-9, -3]}
seeds: 2
resources: {executor: local, workers: 2}
"""
BASE = {"width": 32, "depth": 2, "num_experts": 4, "num_active": 1, "expert_width": 32, "head_dim": 32}
_NONE = dict.fromkeys(("num_stored", "finished", "diverged", "stopped", "failed", "running"), 0)
_SHAPE = {"label": "w16 d1 E2A1 h16", "num_trials": 10, **_NONE, "finished": 10, "best_loss": 3.6, "best": "lr 2^-5"}
_COUNTS = {"num_left": 10, "finished": 10, "diverged": 0, "stopped": 0, "failed": 0, "tokens": 11520, "eta_s": None}
_STATUS = {"version": 2, "sweep": "tiny", "at_most": False, "elapsed_s": 3.4, "tokens_per_s": 9.5, **_COUNTS}
_STATUS |= {"running": [], "shapes": [_SHAPE], "num_notes": 1, "notes": ["a note"], "errors": []}
_PROGRESS = {"state": "ended", "run": "eb4fe343972f9047", "counter": 3, "host": "here", "pid": 1, "machine": None}
_PROGRESS |= {"started": None, "progress": _STATUS}


@dataclass(frozen=True, kw_only=True)
class Materials:
    """Sound files by name, and the names of the tables."""

    sweeps: Mapping[str, bytes]
    results: Mapping[str, bytes]  # relative to the results folder
    recipe: bytes
    tables: tuple[str, ...]
    data: Mapping[str, bytes]
    tiny: bytes = TINY
    base: bytes = json.dumps(BASE).encode()
    target: bytes = json.dumps({**BASE, "width": 128, "depth": 4, "expert_width": 128}).encode()

    def source_of(self, name: str) -> bytes:
        """Return the data source that reads a file of `data`."""
        return f"{'tokens' if name.endswith('.bin') else 'text'}:{name}".encode()


def make_materials() -> Materials:
    """Return the materials: the examples of the package, and a sweep with planted results."""
    from planted_store import PlantedStore, planted_result

    from hpxfer.cli.init import examples
    from hpxfer.data import data_ref
    from hpxfer.data.readers.llmc import UINT16
    from hpxfer.recipe import recipe_from_results, write_recipe
    from hpxfer.report.write import write_report
    from hpxfer.results import load_results
    from hpxfer.scaling.tables import PARAMETERIZATIONS
    from hpxfer.spec.load import parse_sweep
    from hpxfer.store import Store
    from hpxfer.trial import Expansion

    spec = parse_sweep(TINY.decode())
    expansion = Expansion(spec, data_ref(spec.data))
    with TemporaryDirectory() as folder:
        where = Path(folder) / RESULTS
        store = Store.open(where, write=True)
        store.append([(trial, planted_result(trial, PlantedStore())) for trial in expansion.trials()])
        store.compact()
        store.save_sweep(spec, expansion.setting.data_digest)
        found = write_report([where], form="text", output=Path(folder) / "out").reports[0]
        write_recipe(recipe_from_results(load_results(where), found), where / "recipe.yaml")
        (where / "progress.json").write_text(json.dumps(_PROGRESS))
        results = {path.name: path.read_bytes() for path in sorted(where.iterdir()) if path.is_file()}
    return Materials(
        sweeps={name: path.read_bytes() for name, path in examples().items()} | {"tiny": TINY},
        results=results,
        recipe=results["recipe.yaml"],
        tables=tuple(sorted(PARAMETERIZATIONS)),
        data={
            "words.txt": b"the quick brown fox jumps over the lazy dog\n" * 400,
            "shard.bin": UINT16.header(20_000) + struct.pack("<20000H", *(7 * k % 500 for k in range(20_000))),
        },
    )


# What a command of the fuzz never does: train for long, open a browser, connect to a cluster.
_COMMANDS = ("init", "plan", "watch", "list", "report", "recipe write", "explain", "check", "schema")
_NO_OPTIONS = frozenset({"--open", "--address", "--help"})
_SMALL_CHECK = (
    *("--parameterization", "completep", "--axis", "width", "--steps", "1", "--seeds", "1"),
    *("--points", "16,32,48,64"),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of the command line in a folder that holds these files."""

    number: int
    kind: str
    arguments: tuple[str, ...]
    files: Mapping[str, bytes]  # by relative path


Maker = Callable[[Materials, Random], drawn.Drawn]


def case(materials: Materials, seed: int, number: int, kinds: Sequence[str]) -> Case:
    """Return a case of a fuzz. The kinds take turns."""
    random = Random(f"{seed} {number}")
    kind = kinds[number % len(kinds)]
    arguments, files = KINDS[kind](materials, random)
    return Case(number=number, kind=kind, arguments=tuple(arguments), files=dict(files))


def _sweep(materials: Materials, random: Random) -> drawn.Drawn:
    files = {"sweep.yaml": mutate.of_yaml(random.choice([*materials.sweeps.values()]), random)}
    return random.choice(drawn.PLANS), files


def _data(materials: Materials, random: Random) -> drawn.Drawn:
    name = random.choice(sorted(materials.data))
    sweep = materials.tiny.replace(b"builtin:stdlib", materials.source_of(name))
    return ("plan", "sweep.yaml"), {"sweep.yaml": sweep, name: mutate.of_bytes(materials.data[name], random)}


def _recipe(materials: Materials, random: Random) -> drawn.Drawn:
    files = {"recipe.yaml": mutate.of_yaml(materials.recipe, random), "target.json": materials.target}
    target = ("--target", "target.json")
    more = random.choice((target, (*target, "--strict"), (), (*target, "--json")))
    return ("explain", "--recipe", "recipe.yaml", *more), files


def _shape(materials: Materials, random: Random) -> drawn.Drawn:
    files = {"base.json": materials.base, "target.json": materials.target}
    name = random.choice(sorted(files))
    files[name] = mutate.of_json(files[name], random)
    table = random.choice(materials.tables)
    arguments = ["explain", "--parameterization", table, "--base", "base.json", "--target", "target.json"]
    return [*arguments, *random.choice(((), ("--json",), ("--strict",)))], files


def _stored(materials: Materials, random: Random) -> drawn.Drawn:
    files = {f"{RESULTS}/{name}": content for name, content in materials.results.items()}
    name = random.choice(sorted(files))
    change = {"yaml": mutate.of_yaml, "json": mutate.of_json}.get(name.rpartition(".")[2], mutate.of_bytes)
    files[name] = change(files[name], random)
    commands: tuple[tuple[str, ...], ...] = (
        *[("report", RESULTS, "--format", "text")] * 4,
        ("report", RESULTS, "--format", "json", "--output", "out"),
        ("watch", RESULTS, "--once"),
        ("watch", RESULTS, "--once", "--json"),
        ("list", "results"),
        ("list", "results", "--no-verdict"),
        ("recipe", "write", RESULTS),
        ("plan", f"{RESULTS}/sweep.yaml"),
    )
    return random.choice(commands), files


def _options(materials: Materials, random: Random) -> drawn.Drawn:
    files = {"sweep.yaml": materials.tiny, "base.json": materials.base, "target.json": materials.target}
    files |= {"recipe.yaml": materials.recipe}
    files |= {f"{RESULTS}/{name}": content for name, content in materials.results.items()}
    name = random.choice(_COMMANDS)
    command = _click()
    for word in name.split():
        command = command.commands[word]
    arguments = [*name.split(), *(_SMALL_CHECK if name == "check" else ()), *(("--once",) if name == "watch" else ())]
    options = [one for one in command.params if isinstance(one, click.Option) and not _NO_OPTIONS & {*one.opts}]
    for option in random.sample(options, min(len(options), random.choice((1, 1, 2, 3)))):
        arguments.append(random.choice([*option.opts, *option.secondary_opts]))
        if not option.is_flag:
            arguments.append(_value(materials, random))
    if any(isinstance(param, click.Argument) for param in command.params) and random.random() < 0.95:
        sound = {"plan": "sweep.yaml", "list": "results", "init": "smoke"}.get(name, RESULTS)
        arguments.append(sound if random.random() < 0.8 else _value(materials, random))
    if random.random() < 0.05:
        arguments.insert(random.randrange(len(arguments) + 1), _value(materials, random))
    return arguments, files


@cache
def _click() -> Any:
    from hpxfer.cli.app import app

    return typer.main.get_command(app)


def _value(materials: Materials, random: Random) -> str:
    """Return the value of an option: now and then one that is sound for some option."""
    sound = f"sweep.yaml recipe.yaml base.json target.json {RESULTS} results lr validation w16 cpu".split()
    numbers = ("0", "1", "-1", "1e9", "1000000000", "inf", "nan", "0.5", "16,32")
    numbers += ("16,16", "32,16,0", "1e999", "9" * 5000)
    pools = (sound, numbers, materials.tables, [str(mutate.odd(random))[:100_000].replace("\x00", "0")])
    text = random.choice(random.choice(pools))
    return text.encode(errors="replace").decode()


KINDS: dict[str, Maker] = {
    "sweep": _sweep,
    "recipe": _recipe,
    "shape": _shape,
    "stored": _stored,
    "options": _options,
    "data": _data,
    "mlp": lambda _, random: drawn.drawn_mlp(random),
    "samples": lambda _, random: drawn.damaged_samples(random),
    "user": lambda _, random: drawn.drawn_user(random),
}
