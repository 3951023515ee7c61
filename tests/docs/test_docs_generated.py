"""The generated parts of README.md and docs/ are fresh, and the website is whole."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import make_docs
import pytest
from docs_commands import commands
from docs_markdown import anchors, links
from docs_parts import error_summary_markdown, rules_of
from docs_sweep_file import sweep_file_markdown

from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.table import MuonRow
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.spec.load import sweep_schema

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- rules:begin -->", "<!-- rules:end -->"
TEXT = f"# Title\n\n{BEGIN}\nold\n{END}\nafter\n"


@pytest.mark.parametrize("file", sorted({*make_docs.FILES}))
def test_the_committed_page_holds_what_code_and_committed_results_say(file: str) -> None:
    assert (ROOT / file).read_text(encoding="utf-8") == make_docs.generated(ROOT, file), "run `make docs`"


def test_copies_are_up_to_date_and_every_marker_belongs_to_a_generated_part() -> None:
    for file, source in make_docs.COPIES.items():
        assert (ROOT / file).read_bytes() == (ROOT / source).read_bytes(), "run `make docs`"
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in [ROOT / "README.md", ROOT / "kernels/README.md", *(ROOT / "docs").glob("*.md")]
        for name in re.findall(r"<!-- (\w+):begin -->", path.read_text(encoding="utf-8"))
    }
    assert found == {(file, name) for file, parts in make_docs.FILES.items() for name in parts}


def test_the_error_rate_of_the_readme_is_that_of_the_committed_run() -> None:
    summary = error_summary_markdown(ROOT)
    found = re.search(
        r"all worlds \((\d+)\) \| hpxfer \| 1 of ([\d,]+) .*?\n(\d+) sweeps per world", summary, re.DOTALL
    )
    assert found is not None
    worlds, verdicts, sweeps = found.groups()
    said = f"- One of {verdicts} verdicts on {worlds} kinds of planted sweeps, {sweeps} of each, is [wrong]"
    assert said in (ROOT / "README.md").read_text(encoding="utf-8")


BY_MUON = [table.name for table in PARAMETERIZATIONS.rows() if "muon" in table.rows]


def rows_of(name: str) -> list[str]:
    """Return the lines of one table."""
    return [line for line in rules_of(name).splitlines() if line.startswith("| `")]


def test_a_row_of_each_table() -> None:
    assert (
        "| `expert_out` | `width^-0.5 expert_ratio^-1` | `width^-1 expert_ratio^-1` | `width^-1 experts^-1 depth^-1` "
        "| `width expert_ratio` | `depth^-1 active^-1` | 2601.20205 Table 1; eps from measured gradient sizes |"
    ) in rows_of("completep-moe")
    assert "| `expert_out` | `expert_width^-0.5` | `1` | `1` | `1` | `1` | fan-in init, one LR, one eps |" in rows_of(
        "sp"
    )


@pytest.mark.parametrize("name", list(PARAMETERIZATIONS))
def test_every_role_of_a_table_stands_once_per_optimizer(name: str) -> None:
    roles = [role.strip("`") for row in rows_of(name) for role in row.split(" | ")[0].removeprefix("| ").split(", ")]
    assert {line.count("|") for line in rules_of(name).splitlines() if line.startswith("|")} == {8}
    choice = parameterization(name)
    # Of Muon, a page has the rows that are not as under Adam.
    moved = [row for row in choice.rows("muon[router=muon]") if isinstance(row, MuonRow)] if name in BY_MUON else []
    plain = [row for optimizer in choice.table.rows if optimizer != "muon" for row in choice.rows(optimizer)]
    assert sorted(roles) == sorted(row.role for row in (*plain, *moved))


def test_the_references_have_every_key_and_every_command() -> None:
    page = sweep_file_markdown(ROOT)
    schema = sweep_schema()
    keys = [key for section in (schema, *schema["$defs"].values()) for key in section["properties"]]
    assert len(keys) > 80
    assert [key for key in keys if f"`{key}`" not in page and f"`{{{key}: " not in page] == []
    assert {link.removeprefix("#") for link in links(page)} <= anchors(page)
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    names = [name for name, _ in commands()]
    assert {"hpxfer run", "hpxfer data info"} <= set(names)
    assert [name for name in names if f"\n## {name}\n" not in page] == []


def test_a_part_replaces_only_what_is_between_its_markers() -> None:
    got = make_docs.with_part(TEXT, "rules", "new")
    assert got == f"# Title\n\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert make_docs.with_part(got, "rules", "new") == got


@pytest.mark.parametrize(
    "text", ["", "# Title\n", f"{BEGIN}\n", f"{END}\n", f"{END}\n{BEGIN}\n", TEXT + TEXT, f"{BEGIN}\n{BEGIN}\n{END}\n"]
)
def test_markers_that_are_missing_or_misplaced(text: str) -> None:
    with pytest.raises(HpxferError) as caught:
        make_docs.with_part(text, "rules", "new")
    assert str(caught.value) == f"must hold the line {BEGIN} and, below it, the line {END}, each once; add them"


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one page of one part and one copied file."""
    monkeypatch.setattr(make_docs, "ROOT", tmp_path)
    monkeypatch.setattr(make_docs, "FILES", {"page.md": {"rules": lambda root: f"rules of {root.name}"}})
    monkeypatch.setattr(make_docs, "COPIES", {"copy.png": "source.png"})
    (tmp_path / "page.md").write_text(TEXT)
    shutil.copyfile(ROOT / "docs" / "images" / "quickstart.png", tmp_path / "source.png")
    return tmp_path


def test_main_rewrites_pages_and_copies(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_docs.main(["--check"]) == 1
    assert capsys.readouterr().out == "page.md: stale; run `make docs`\ncopy.png: stale; run `make docs`\n"
    assert make_docs.main([]) == 0
    assert (copy / "page.md").read_text() == TEXT.replace("old", f"\nrules of {copy.name}\n")
    assert (copy / "copy.png").read_bytes() == (copy / "source.png").read_bytes()
    assert make_docs.main(["--check"]) == 0


def test_main_leaves_a_page_without_markers_alone(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "page.md").write_text("# Title\n")
    assert make_docs.main([]) == 2
    assert capsys.readouterr().err == (
        f"page.md: must hold the line {BEGIN} and, below it, the line {END}, each once; add them\n"
    )
    assert (copy / "page.md").read_text() == "# Title\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zensical", reason="the website needs what `pip install 'hpxfer[docs]'` installs")
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_every_page_is_there_with_its_text_and_loads_nothing_from_another_server(site: Path) -> None:
    for html_page in site.glob("*.html"):
        text = html_page.read_text(encoding="utf-8")
        assert re.findall(r'(?:src|<link[^>]+href)="https?://', text) == [], html_page.name
    for page in (ROOT / "docs").glob("*.md"):
        html = (site / page.with_suffix(".html").name).read_text(encoding="utf-8")
        title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert f"{title}</h1>" in html or f">{title}<" in html, page.name
        assert "```" not in html, page.name
        assert html.count("<table") >= page.read_text(encoding="utf-8").count("\n| --- "), page.name


def test_every_link_between_pages_leads_somewhere(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        html = (site / page.with_suffix(".html").name).read_text(encoding="utf-8")
        for target, anchor in re.findall(r'href="([\w-]+\.html)?#([\w-]+)"', html):
            if not anchor.startswith("__"):
                there = site / (target or page.with_suffix(".html").name)
                assert f'id="{anchor}"' in there.read_text(encoding="utf-8"), f"{page.name}: {target}#{anchor}"
