"""Commands, sweep files and Python in the pages: they parse, load and run."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from docs_commands import app, commands
from docs_markdown import blocks, code_words
from own_model import ROLES, OwnGPT

import hpxfer
from hpxfer.data.sources import open_dataset
from hpxfer.recipe import OtherModelWarning, UnattachedWarning
from hpxfer.scaling.shape import Shape
from hpxfer.spec import parse_sweep
from hpxfer.spec.yaml_file import parse_yaml, read_yaml, write_yaml

# Typer carries a click of its own: the class is found through what Typer exports.
ClickException: Any = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")
ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "kernels" / "README.md",
    ROOT / "results" / "README.md",
    ROOT / "results" / "LOG.md",
    ROOT / "sweeps" / "cluster" / "README.md",
    ROOT / "results" / "published" / "check" / "README.md",
]
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
# The shape of the model in the examples.
TARGET = {"width": 128, "depth": 2, "num_experts": 4, "num_active": 1, "expert_width": 128, "head_dim": 32}
PLACEHOLDER = re.compile(r"hpxfer( --plugin \S+)?( [A-Z]+\b| \.\.\.|$)")  # `hpxfer COMMAND --help`


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def block_lines(page: str) -> Iterator[str]:
    """Yield every single command of the blocks of a page."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            line = re.sub(r"(^|\s)#.*", "", line)
            quoted = re.sub(r"'[^']*'", "X", line)  # what quotes hold is no command
            for part in re.split(r"&&|\|\||[|;]|\$\(|\)|\bdo\b", quoted):
                yield part.strip()


def shell_lines(page: str) -> Iterator[str]:
    """Yield every single command of a page: those of its blocks, and those in code font."""
    yield from block_lines(page)
    yield from (word for word in code_words(page) if word.startswith(("hpxfer ", "python ", "make ")))


def parse(line: str) -> None:
    """Parse a line of hpxfer as the command line would, without running it. Raises ClickException."""
    command: Any = app()
    flags = {"--help", *(name for option in command.params if option.is_flag for name in option.opts)}
    words = [word for word in shlex.split(line.partition(" > ")[0])[1:] if word not in flags]
    context: Any = None
    while words or not hasattr(command, "commands"):
        context = command.make_context("hpxfer", list(words), parent=context)
        if not hasattr(command, "commands"):
            return
        _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])


def is_name(line: str) -> bool:
    """Return whether a line only names a command, e.g. `hpxfer run` or `hpxfer data info`."""
    return line in {name for name, _ in commands()} | {"hpxfer"}


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_one_of_hpxfer(name: str) -> None:
    page = text_of(name)
    named = [word for word in code_words(page) if word.startswith("hpxfer ") and not is_name(word)]
    for line in [*block_lines(page), *named]:
        if line.startswith("hpxfer ") and not PLACEHOLDER.match(line):
            try:
                parse(line)
            except ClickException as error:
                pytest.fail(f"{name}: {line}: {error.format_message()}")


def test_the_pages_hold_many_commands() -> None:
    lines = [line for name in NAMES for line in shell_lines(text_of(name)) if line.startswith("hpxfer ")]
    assert len(lines) > 60
    assert len({line.split()[1] for line in lines}) > 12


@pytest.mark.parametrize(
    "line", ["hpxfer rum sweep.yaml", "hpxfer run", "hpxfer run a.yaml --adress auto", "hpxfer plan a.yaml b.yaml"]
)
def test_a_wrong_command_is_found(line: str) -> None:
    with pytest.raises(ClickException):
        parse(line)


@pytest.mark.parametrize("name", NAMES)
def test_every_make_target_module_and_script_exists(name: str) -> None:
    targets = re.findall(r"^([\w-]+):", text_of("Makefile"), re.MULTILINE)
    for line in shell_lines(text_of(name)):
        words = line.split()
        if words[:1] == ["make"] and len(words) > 1 and "=" not in words[1]:
            assert words[1] in targets, line
        elif words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2]) is not None, line
        elif words[:1] == ["python"] and words[1].endswith(".py"):
            assert (ROOT / words[1]).exists(), line


@pytest.mark.parametrize("name", NAMES)
def test_every_sweep_loads(name: str) -> None:
    """A block with data, or with a trainer, is a whole sweep. Any other one is a part of the quickstart."""
    whole = read_yaml(ROOT / "sweeps" / "quickstart.yaml").data
    for block in blocks(text_of(name), "yaml"):
        data = parse_yaml(block, name).data
        if "recipe" in data.get("hps", {}):  # of a run; any recipe at the base of the quickstart will do
            data["hps"]["recipe"] = str(ROOT / "results" / "published" / "quickstart" / "recipe.yaml")
        if "plugins" not in data:  # `test_docs_extend` loads those, beside their files
            is_whole = "model" in data and ("data" in data or "trainer" in data)
            assert parse_sweep(write_yaml(data if is_whole else {**whole, **data})).name


@pytest.mark.parametrize("name", NAMES)
def test_every_block_of_python_and_json_parses(name: str) -> None:
    for block in blocks(text_of(name), "python"):
        compile(block, name, "exec")
    for block in blocks(text_of(name), "json"):
        json.loads(block)


@pytest.mark.parametrize("name", ["docs/results.md"])
def test_python_that_reads_published_results_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = [block for block in blocks(text_of(name), "python") if "results/published" in block]
    assert found
    for block in found:
        exec(compile(block, name, "exec"), {})


@pytest.mark.parametrize("name", ["README.md", "docs/own-model.md"])
def test_the_recipe_of_the_docs_applies_to_a_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the block as it stands, but for the place of the recipe, on a model that knows nothing of hpxfer."""
    (block,) = [block for block in blocks(text_of(name), "python") if "Recipe.load" in block]
    recipe = "results/published/quickstart/recipe.yaml"
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(hpxfer, "roles", lambda model: ROLES)

    def model(*_: object) -> torch.nn.Module:
        multipliers = hpxfer.Recipe.load(recipe).forward_multipliers(TARGET)
        return OwnGPT(Shape(**TARGET), vocab_size=128, context=64, multipliers=multipliers)

    space: dict[str, Any] = {"MyGPT": model}
    other = pytest.warns(OtherModelWarning, match="gains of the norms: none at the base, some in the target")
    with other, pytest.warns(UnattachedWarning, match="does not multiply by attn_logits"):
        exec(compile(block.replace("results/quickstart/recipe.yaml", recipe), name, "exec"), space)
    assert len({group["lr"] for group in space["optimizer"].param_groups}) > 1


def test_ids_that_numpy_saved_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = blocks(text_of("docs/data.md"), "python")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs/data.md", "exec"), {})
    dataset = open_dataset(f"tokens:{tmp_path}/shards/*.npy")
    assert dataset is not None
    assert dataset.parts[0].read(0, 3).tolist() == [3, 1, 2]
