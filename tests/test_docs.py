"""The generated part of the README: what it says, where it goes, and that the committed one is up to date."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from hpxfer.docs import PARTS, SHOWN, generated, main, rules_markdown, with_part
from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import parameterization
from hpxfer.spec import parse_sweep
from hpxfer.spec.yaml_file import parse_yaml, read_yaml, write_yaml

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- rules:begin -->", "<!-- rules:end -->"
TEXT = f"# Title\n\n{BEGIN}\nold\n{END}\nafter\n"


def rows_of(name: str) -> list[str]:
    """Return the lines of one table."""
    start = f"`{name}` ("
    (block,) = [part for part in ("\n" + rules_markdown()).split("\n`") if part.startswith(start[1:])]
    return [line for line in block.splitlines() if line.startswith("| `")]


def with_rules(text: str) -> str:
    return with_part(text, "rules", rules_markdown())


def test_the_committed_readme_holds_what_code_and_committed_results_say() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == generated(text, ROOT), "run `make docs`"


def test_a_row_of_each_table() -> None:
    assert (
        "| `expert_out` | `width^-0.5 expert_ratio^-1` | `width^-1 expert_ratio^-1` | `width^-1 experts^-1 depth^-1` "
        "| `width expert_ratio` | `depth^-1 active^-1` | 2601.20205 Table 1; eps from measured gradient sizes |"
    ) in rows_of("completep-moe")
    assert "| `expert_out` | `expert_width^-0.5` | `1` | `1` | `1` | `1` | fan-in init, one LR, one eps |" in rows_of(
        "sp"
    )


@pytest.mark.parametrize("name", SHOWN)
def test_every_role_stands_once(name: str) -> None:
    roles = [role.strip("`") for row in rows_of(name) for role in row.split(" | ")[0].removeprefix("| ").split(", ")]
    assert sorted(roles) == sorted(row.role for row in parameterization(name).rows("adam"))


def test_every_row_has_as_many_cells_as_the_heading() -> None:
    lines = [line for line in rules_markdown().splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {8}


def test_with_rules_replaces_only_what_is_between_the_markers() -> None:
    got = with_rules(TEXT)
    assert got == f"# Title\n\n{BEGIN}\n\n{rules_markdown()}\n\n{END}\nafter\n"
    assert with_rules(got) == got


@pytest.mark.parametrize(
    "text",
    ["", "# Title\n", f"{BEGIN}\n", f"{END}\n", f"{END}\n{BEGIN}\n", TEXT + TEXT, f"{BEGIN}\n{BEGIN}\n{END}\n"],
)
def test_markers_that_are_missing_or_misplaced(text: str) -> None:
    with pytest.raises(HpxferError) as caught:
        with_rules(text)
    assert str(caught.value) == f"must hold the line {BEGIN} and, below it, the line {END}, each once; add them"


def test_main_rewrites_the_file_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PARTS:
        monkeypatch.setitem(PARTS, name, lambda root, name=name: f"{name} of {root.name}")
    path = tmp_path / "README.md"
    text = "".join(f"<!-- {name}:begin -->\nold\n<!-- {name}:end -->\r\n" for name in PARTS)
    path.write_bytes(text.encode())
    path.chmod(0o640)
    assert main([str(path)]) == 0
    new = [f"\n{name} of {tmp_path.name}\n" for name in PARTS]
    assert path.read_bytes().decode() == text.replace("old", "{}").format(*new)
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["README.md"]


def test_main_leaves_a_file_without_markers_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "README.md"
    path.write_text("# Title\n")
    assert main([str(path)]) == 2
    first = next(iter(PARTS))
    begin, end = f"<!-- {first}:begin -->", f"<!-- {first}:end -->"
    assert capsys.readouterr().err == (
        f"{path}: must hold the line {begin} and, below it, the line {end}, each once; add them\n"
    )
    assert path.read_text() == "# Title\n"


def test_main_names_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.md")]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path / 'none.md'}: cannot be read: ")


def test_main_wants_one_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err == "usage: python -m hpxfer.docs README.md\n"


def test_the_readmes_sweep_parts_and_python_are_legal() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    parts = parse_yaml(text.partition("```yaml\n")[2].partition("```")[0], "README.md").data
    spec = parse_sweep(write_yaml({**read_yaml(ROOT / "sweeps" / "quickstart.yaml").data, **parts}))
    assert set(spec.axes) == {"width", "experts", "joint"}
    for block in text.split("```python\n")[1:]:
        compile(block.partition("```")[0], "README.md", "exec")


def test_every_file_that_the_readme_links_to_is_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []
