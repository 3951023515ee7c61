"""Cases: the commands of a fuzz with the files that each of them reads. A case follows from the seed and its number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import click
import fuzz_mlp
import fuzz_mutate as mutate
import fuzz_user
import typer
from fuzz_materials import RESULTS, Materials

# What a command of the fuzz never does: train for long, open a browser, connect to a cluster.
_COMMANDS = ("init", "plan", "watch", "list", "report", "recipe", "explain", "check", "schema")
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


Maker = Callable[[Materials, Random], tuple[Sequence[str], Mapping[str, bytes]]]


def case(materials: Materials, seed: int, number: int, kinds: Sequence[str]) -> Case:
    """Return a case of a fuzz. The kinds take turns."""
    random = Random(f"{seed} {number}")
    kind = kinds[number % len(kinds)]
    arguments, files = KINDS[kind](materials, random)
    return Case(number=number, kind=kind, arguments=tuple(arguments), files=dict(files))


def _sweep(materials: Materials, random: Random) -> tuple[Sequence[str], Mapping[str, bytes]]:
    files = {"sweep.yaml": mutate.of_yaml(random.choice([*materials.sweeps.values()]), random)}
    commands = (
        *[("plan", "sweep.yaml")] * 4,
        ("plan", "sweep.yaml", "--json", "--trials"),
        ("explain", "--sweep", "sweep.yaml"),
        ("report", "sweep.yaml"),
    )
    return random.choice(commands), files


def _data(materials: Materials, random: Random) -> tuple[Sequence[str], Mapping[str, bytes]]:
    name = random.choice(sorted(materials.data))
    sweep = materials.tiny.replace(b"builtin:stdlib", materials.source_of(name))
    return ("plan", "sweep.yaml"), {"sweep.yaml": sweep, name: mutate.of_bytes(materials.data[name], random)}


def _recipe(materials: Materials, random: Random) -> tuple[Sequence[str], Mapping[str, bytes]]:
    files = {"recipe.yaml": mutate.of_yaml(materials.recipe, random), "target.json": materials.target}
    commands = (
        ("explain", "--recipe", "recipe.yaml", "--target", "target.json"),
        ("explain", "--recipe", "recipe.yaml", "--target", "target.json", "--strict"),
        ("explain", "--recipe", "recipe.yaml"),
        ("explain", "--recipe", "recipe.yaml", "--target", "target.json", "--json"),
    )
    return random.choice(commands), files


def _shape(materials: Materials, random: Random) -> tuple[Sequence[str], Mapping[str, bytes]]:
    files = {"base.json": materials.base, "target.json": materials.target}
    name = random.choice(sorted(files))
    files[name] = mutate.of_json(files[name], random)
    table = random.choice(materials.tables)
    arguments = ["explain", "--parameterization", table, "--base", "base.json", "--target", "target.json"]
    return [*arguments, *random.choice(((), ("--json",), ("--strict",)))], files


def _stored(materials: Materials, random: Random) -> tuple[Sequence[str], Mapping[str, bytes]]:
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
        ("recipe", RESULTS),
        ("plan", f"{RESULTS}/sweep.yaml"),
    )
    return random.choice(commands), files


def _options(materials: Materials, random: Random) -> tuple[Sequence[str], Mapping[str, bytes]]:
    files = {"sweep.yaml": materials.tiny, "base.json": materials.base, "target.json": materials.target}
    files |= {"recipe.yaml": materials.recipe}
    files |= {f"{RESULTS}/{name}": content for name, content in materials.results.items()}
    name = random.choice(_COMMANDS)
    command = _click().commands[name]
    arguments = [name, *(_SMALL_CHECK if name == "check" else ()), *(("--once",) if name == "watch" else ())]
    options = [option for option in command.params if isinstance(option, click.Option) and _is_free(option)]
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


def _is_free(option: click.Option) -> bool:
    return not _NO_OPTIONS & {*option.opts}


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
    "mlp": lambda _, random: fuzz_mlp.drawn(random),
    "samples": lambda _, random: fuzz_mlp.damaged_samples(random),
    "user": lambda _, random: fuzz_user.drawn(random),
}
