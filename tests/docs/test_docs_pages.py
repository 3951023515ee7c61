"""Commands, sweep files, Python, links, tables and numbers of the pages: they parse, run, and are those of the code."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from docs_commands import app, commands
from docs_markdown import anchor, anchors, blocks, code_words, links, without_blocks
from own_model import ROLES, OwnGPT
from recipe_data import TARGET as SMALL_TARGET
from recipe_data import data

import hpxfer
from hpxfer.cli.app import COMMANDS
from hpxfer.data.sources import open_dataset
from hpxfer.errors import HpxferError
from hpxfer.export import EXPORT_TARGETS, Named, export, read_names
from hpxfer.limit.network_file import NetworkFile, network_of
from hpxfer.recipe import OtherModelWarning, Recipe, UnattachedWarning
from hpxfer.recipe.file import RECIPE_VERSION
from hpxfer.recipe.start import load_sweep
from hpxfer.registry import registry
from hpxfer.scaling.roles import ROLES as TABLE_ROLES
from hpxfer.scaling.shape import Shape
from hpxfer.spec import parse_sweep
from hpxfer.spec.axes import DIMENSION
from hpxfer.spec.fields import validated
from hpxfer.spec.yaml_file import parse_yaml, read_yaml, write_yaml
from hpxfer.store.schema import SCHEMA_VERSION

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


WHOLE = read_yaml(ROOT / "sweeps" / "quickstart.yaml").data


@pytest.mark.parametrize("name", NAMES)
def test_every_block_and_every_command_of_a_page_is_legal(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block with data or a trainer is a sweep, one with a regime a network, any other a part of the quickstart."""
    monkeypatch.setattr("hpxfer.spec.import_plugin", lambda name, folder: None)  # a page's plug-ins are no files here
    page = text_of(name)
    for block in blocks(page, "yaml"):
        data = parse_yaml(block, name).data
        if "regime" in data:
            network_of(file := parse_yaml(block, name), validated(NetworkFile, file))
            continue
        if "recipe" in data.get("hps", {}):  # of a run; any recipe at the base of the quickstart will do
            data["hps"]["recipe"] = str(ROOT / "results" / "published" / "quickstart" / "recipe.yaml")
        if "plugins" not in data:  # those of docs/extend.md are loaded beside their files
            is_whole = "model" in data and ("data" in data or "trainer" in data)
            (tmp_path / "sweep.yaml").write_text(write_yaml(data if is_whole else {**WHOLE, **data}))
            assert load_sweep(tmp_path / "sweep.yaml").name
    for block in blocks(page, "python"):
        compile(block, name, "exec")
    for block in blocks(page, "json"):
        json.loads(block)
    targets = re.findall(r"^([\w-]+):", text_of("Makefile"), re.MULTILINE)
    for line in shell_lines(page):
        words = line.split()
        if words[:1] == ["make"] and len(words) > 1 and "=" not in words[1]:
            assert words[1] in targets, line
        elif words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2]) is not None, line
        elif words[:1] == ["python"] and words[1].endswith(".py"):
            assert (ROOT / words[1]).exists(), line
    named = [word for word in code_words(page) if word.startswith("hpxfer ") and not is_name(word)]
    for line in [*block_lines(page), *named]:
        if line.startswith("hpxfer ") and not PLACEHOLDER.match(line):
            try:
                parse(line)
            except ClickException as error:
                pytest.fail(f"{name}: {line}: {error.format_message()}")


@pytest.mark.parametrize(
    "line", ["hpxfer rum sweep.yaml", "hpxfer run", "hpxfer run a.yaml --adress auto", "hpxfer plan a.yaml b.yaml"]
)
def test_a_wrong_command_is_found_among_many(line: str) -> None:
    with pytest.raises(ClickException):
        parse(line)
    lines = [line for name in NAMES for line in shell_lines(text_of(name)) if line.startswith("hpxfer ")]
    assert len(lines) > 60
    assert len({line.split()[1] for line in lines}) > 12


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


# A path in code font is one of the repository if it starts with one of its folders. Users make results/NAME.
PATH = re.compile(r"(hpxfer|tests|sweeps|docs|kernels|notebooks|results/published|results/bench)(/[\w.-]+)*")


@pytest.mark.parametrize("name", NAMES)
def test_every_link_and_every_path_in_code_font_leads_somewhere(name: str) -> None:
    assert broken_links(ROOT / name) == []
    words = [word for word in code_words(text_of(name)) if PATH.fullmatch(word)]
    assert [word for word in words if "/" in word and not (ROOT / word).exists()] == []
    if name.startswith("docs/"):  # a site holds docs/ alone: a link out of it would be broken there
        assert [link for link in links(text_of(name)) if link.startswith("..")] == []


def broken_links(page: Path) -> list[str]:
    """Return the links of a page to files that are not there, or to headings that their page has not."""
    out = []
    for link in links(page.read_text(encoding="utf-8")):
        path, _, heading = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (heading and heading not in anchors(target.read_text(encoding="utf-8"))):
            out.append(link)
    return out


def test_links_that_are_broken_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n\n## A `b`, c\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n[a](other.md) [b](other.md#a-b-c) [c](none.md) [d](other.md#a-b) [e](#page) [f](#pages)\n"
        "```text\n# no heading\n[g](nowhere.md)\n```\n[h](https://example.org/x) ![i](i.png)\n"
    )
    assert broken_links(page) == ["none.md", "other.md#a-b", "#pages", "i.png"]
    assert anchor("axes.NAME.shapes") == "axesnameshapes"  # as code hosts have it
    assert anchor("`hps` and more: early_stopping") == "hps-and-more-early_stopping"


def test_the_site_and_the_first_page_have_every_text_of() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    nav = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    assert sorted(name for entry in nav for name in entry.values()) == sorted(pages)
    index = {link.partition("#")[0] for link in links((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))}
    assert {link for link in index if link.endswith(".md")} == pages - {"index.md"}
    readme = {link.partition("#")[0] for link in links((ROOT / "README.md").read_text(encoding="utf-8"))}
    assert {f"docs/{name}" for name in pages - {"index.md"}} <= readme
    assert len(text_of("README.md").splitlines()) <= 120


COLUMN = r"^\| `{}([\w-]+)` \|"
PROJECT: dict[str, Any] = tomllib.loads(text_of("pyproject.toml"))["project"]
TABLES = {
    ("docs/sweep-file.md", "## Axes", COLUMN.format("")): DIMENSION,
    ("docs/parameterizations.md", "## Roles", r"`(\w+)`(?=[^|]*\|[^|]*\|.*$)"): TABLE_ROLES,
    ("docs/search.md", "", r"^\| `([\w-]+)` \| [^|]* \| `sweeps/"): registry("search").names(),
    ("docs/commands.md", "", COLUMN.format("hpxfer ")): COMMANDS,
    ("docs/export.md", "", r"^\| `([\w-]+)` \| (?:yes|no)"): EXPORT_TARGETS.names(),
    ("docs/export.md", "", r"^\| `([\w-]+)` .* \| none[^|]* \|$"): [
        row.name for row in EXPORT_TARGETS.rows() if row.names is None
    ],
}


@pytest.mark.parametrize(("place", "names"), TABLES.items())
def test_a_table_has_every_name_in_order(place: tuple[str, str, str], names: Iterable[str]) -> None:
    name, heading, pattern = place
    below = text_of(name).partition(f"\n{heading}\n")[2].partition("\n## ")[0] if heading else text_of(name)
    assert re.findall(pattern, below, re.MULTILINE) == list(names)


def test_the_versions_are_those_of_the_package() -> None:
    found = PROJECT
    low, high = re.fullmatch(r">=(3\.\d+),<3\.(\d+)", found["requires-python"]).groups()  # type: ignore[union-attr]
    pythons = f"{low} to 3.{int(high) - 1}"
    for name in ("README.md", "docs/quickstart.md", "docs/compatibility.md"):
        assert pythons in text_of(name), name
    assert f"hpxfer-{hpxfer.__version__}-py3-none-any.whl" in text_of("docs/quickstart.md")
    text = text_of("docs/compatibility.md")
    needed = dict(re.findall(r'"(\w+)(?:\[[\w,]+\])?>=([\d.]+)', str(found["dependencies"]).replace("'", '"')))
    assert f"| torch | {needed['torch']} to " in text
    assert f"| Ray | {needed['ray']} and later |" in text
    assert f"`hpxfer.schema` in the metadata of each file | {SCHEMA_VERSION} |" in text
    assert f"`hpxfer_recipe` | {RECIPE_VERSION} |" in text


def test_every_extra_that_the_docs_name_exists() -> None:
    extras = set(PROJECT["optional-dependencies"])
    named = {
        word
        for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        for word in re.findall(r"hpxfer\[(\w+)\]", path.read_text(encoding="utf-8"))
    }
    assert named <= extras
    assert {"hf", "s3", "wandb", "docs", "notebooks"} <= named


def test_every_word_of_the_glossary_stands_once() -> None:
    words = re.findall(r"^### (.+)$", text_of("docs/glossary.md"), re.MULTILINE)
    assert len(set(words)) == len(words) > 40
    asked = [
        *("stack", "shape", "kappa", "octave", "arm", "cell", "control", "regret", "edge"),
        *("parameterization", "convention", "base", "trial", "role", "axis", "HP", "recipe", "drift", "verdict"),
    ]
    assert [word for word in asked if word not in words] == []


def test_the_message_of_a_mistake_is_the_one_that_is_shown() -> None:
    text = text_of("sweeps/quickstart.yaml").replace("num_experts:", "num_expert:")
    with pytest.raises(HpxferError) as caught:
        parse_sweep(text, "quickstart.yaml")
    assert f"\nhpxfer: {caught.value}\n" in text_of("docs/sweep-file.md")


def test_no_page_has_an_open_end() -> None:
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = path.read_text(encoding="utf-8")
        assert "TODO" not in text, path.name
        split = [line for line in without_blocks(text).splitlines() if line.count("`") % 2]
        assert split == [], f"{path.name}: a code word is cut by the end of a line"
        assert text.count("\n```") % 2 == 0, path.name
        fences = set(re.findall(r"^```(.*)$", text, re.MULTILINE))
        assert fences <= {"", "sh", "text", "yaml", "python", "json"}, path.name
        assert "—" not in without_blocks(text), path.name


EXPORT = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")


def test_the_keys_are_those_of_the_file() -> None:
    found = export(Recipe.parse(write_yaml(data())), "json", SMALL_TARGET)
    table = EXPORT.partition("## JSON")[2].partition("## Which")[0]
    named = {
        key for row in table.splitlines() if row.startswith("| `") for key in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert named == set(json.loads(found.files["hpxfer.json"])) - {"hpxfer_export", "target"}


def test_the_names_of_a_model_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in blocks(EXPORT, "python") if "write_names" in block]
    exec(block, {})
    assert [one.size for one in read_names("names.json")] == [(128, 64), (128, 64)]


def test_the_export_target_of_the_page_works() -> None:
    (block,) = [block for block in blocks(EXPORT, "python") if "register_export_target" in block]
    space: dict[str, Any] = {"__name__": "numbers"}
    try:
        exec(block, space)
        found = export(
            Recipe.parse(write_yaml(data())), "numbers", SMALL_TARGET, [Named(name="wte.weight", role="embedding")]
        )
    finally:
        EXPORT_TARGETS.remove("numbers")
    assert found.files["numbers.txt"] == "wte.weight 0.015625 0.1"
