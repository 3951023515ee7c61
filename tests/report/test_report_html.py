"""The page as text: self-contained, escaped, small and honest, with its tables and all its trials."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_cases import EVIL, SVG, Stub, report_of, source, write_store

from hpxfer.figures.style import INK
from hpxfer.host.output import NOTHING, Column, Table, table_of
from hpxfer.report import make_report, to_html, trials
from hpxfer.report.html import MOST_BYTES
from hpxfer.report.trials import trial_data
from hpxfer.results import load_results

BIG = "M 0 0 " + "L 1 2 " * 20_000


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return to_html(report_of(write_store(tmp_path_factory.mktemp("page"))))


def test_nothing_is_loaded_from_elsewhere(page: str) -> None:
    for tag, attributes in Elements(page).found:
        assert tag not in ("iframe", "object", "embed", "base", "form")
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value)
        assert not any(name.startswith("on") for name in attributes)
    assert "url(http" not in page


def test_the_policy_allows_the_pages_own_script_alone(page: str) -> None:
    elements = Elements(page)
    (policy,) = [a["content"] for tag, a in elements.found if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    digest = base64.b64encode(hashlib.sha256(elements.scripts[-1].encode()).digest()).decode()
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert "connect-src" not in rules


def test_the_verdict_comes_before_figures_and_tables(page: str) -> None:
    places = [page.index(f'<section id="{name}">') for name in ("verdict", "figures", "tables", "trials", "sweep")]
    assert places == sorted(places)
    assert page.index("transfers</span>") < places[1]
    assert page.index("control sp drifts") < places[1]


def test_what_a_store_holds_is_text_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "<b>").mkdir()
    twin = write_store(tmp_path / "<b>" / "<script>alert(1)<")
    edit = ("source: builtin:stdlib", "source: 'text:<script>alert(2)</script>'")
    folder = write_store(tmp_path / "a", edit, failing=(0, 1))
    picture = Stub(title=EVIL, caption=EVIL, csv=EVIL)
    page = to_html(make_report([source(folder, picture, notes=(EVIL,)), source(twin, picture)]))
    scripts = Elements(page).scripts
    assert len(scripts) == 3  # the trials of either, and the page's own
    assert not any("alert" in script for script in scripts)
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert") >= 6
    assert "{{ 7*7 }}" in page


def test_equal_stores_give_equal_pages_but_for_the_folder_in_commands(tmp_path: Path) -> None:
    folders = [tmp_path / place / "a" for place in "xy"]
    first, second = (to_html(report_of(write_store(folder))) for folder in folders)
    assert f"hpxfer recipe write {folders[0]}" in first
    assert first.replace(str(folders[0]), str(folders[1])) == second


def test_a_figure_is_an_image_whose_ink_follows_the_page(page: str) -> None:
    (image,) = [a for tag, a in Elements(page).found if tag == "img"]
    assert image["alt"] == "completep-moe transfers"
    kind, _, content = (image["src"] or "").partition(";base64,")
    assert kind == "data:image/svg+xml"
    svg = base64.b64decode(content).decode()
    ElementTree.fromstring(svg)
    assert INK in SVG
    assert INK not in svg
    assert "stroke: currentColor" in svg
    assert "@media(prefers-color-scheme:dark)" in svg
    assert "<text" not in page, "the picture is in its data URL alone"


def test_too_large_a_figure_becomes_a_png_and_then_is_left_out(tmp_path: Path) -> None:
    folder = write_store(tmp_path)
    svg = f'<svg xmlns="http://www.w3.org/2000/svg"><path d="{BIG}"/></svg>'
    pictures = [Stub(name="large", svg=svg), Stub(name="noise", svg=svg, png=b"x" * 10**6), Stub(name="small")]
    report = make_report([source(folder, *pictures)])
    full = to_html(report, 10**7)
    assert full.count('<img src="data:image/svg+xml') == 3
    least = to_html(report, 10)
    assert least.count("in the folder figures beside this file, as ") == 3
    room = len(least.encode()) + 50_000
    page = to_html(report, room)
    assert len(page.encode()) <= room
    assert page.count('<img src="data:image/svg+xml') == 1
    assert page.count('<img src="data:image/png') == 1
    assert re.findall(r"in the folder figures beside this file, as (\w+)\.svg", page) == ["noise"]


def test_figures_of_hps_that_are_not_judged_stand_closed_below_the_others(tmp_path: Path) -> None:
    folder = write_store(tmp_path)
    pictures = [Stub(name="a", title="other HP", aside=True), Stub(name="b", title="judged"), Stub(name="c", title="c")]
    page = to_html(make_report([source(folder, *pictures)]))
    figures = page[page.index('<section id="figures">') : page.index('<section id="tables">')]
    above, below = figures.split('<details class="more" id="figures-aside">')
    assert [re.findall(r"<figcaption><h3>([^<]*)", part) for part in (above, below)] == [["judged", "c"], ["other HP"]]
    assert "were scanned: 1 figure</summary>" in below
    plain = to_html(make_report([source(folder, *pictures[1:])]))
    assert "figures-aside" not in plain


def test_a_figure_that_another_sweep_judges_stays_open(tmp_path: Path) -> None:
    first, second = write_store(tmp_path / "a"), write_store(tmp_path / "b")
    page = to_html(make_report([source(first, Stub()), source(second, Stub(aside=True))]))
    assert "figures-aside" not in page


def test_a_store_without_any_judged_cell_is_a_page_all_the_same(tmp_path: Path) -> None:
    folder = write_store(tmp_path)
    page = to_html(make_report([source(folder, reports=(), notes=("lr: its line cannot be read",))]))
    assert "There is no verdict yet" in page
    assert "its line cannot be read" in page
    assert len(page.encode()) < MOST_BYTES


def test_the_figure_of_an_axis_stands_directly_under_the_verdict_on_it(tmp_path: Path) -> None:
    pictures = [
        Stub(name="transfer", title="the transfer", verdict_axis="width"),
        Stub(name="b", title="another"),
    ]
    page = to_html(make_report([source(write_store(tmp_path), *pictures)]))
    places = ['<p class="headline">', '<ul class="badges">', "<h3>the transfer</h3>", '<div class="cards">']
    places += ['<section id="figures">', "<h3>another</h3>"]
    assert [page.index(place) for place in places] == sorted(page.index(place) for place in places)
    assert page.count("<h3>the transfer</h3>") == 1


def test_a_badge_is_a_word_and_a_shape(tmp_path: Path) -> None:
    page = to_html(make_report([source(write_store(tmp_path))]))
    badges = re.findall(r'<span class="badge (\w+)"><svg.*?>(.*?)</svg>(.*?)</span>', page, re.DOTALL)
    assert {(verdict, word) for verdict, _, word in badges} == {("transfers", "transfers"), ("drifts", "drifts")}
    assert len({shape.strip() for _, shape, _ in badges}) == 2


CELLS = st.one_of(st.none(), st.text(max_size=5), st.integers(), st.floats())


@given(CELLS)
def test_every_cell_has_a_text_and_goes_into_json(cell: str | float | None) -> None:
    column = Column(name="a")
    assert isinstance(column.text(cell), str)
    (row,) = Table(title="t", columns=(column,), rows=((cell,),)).to_dict()["rows"]
    json.dumps(row, allow_nan=False)
    missing = cell is None or (isinstance(cell, float) and not math.isfinite(cell))
    assert (row["a"] is None) == missing
    assert missing <= (column.text(cell) == NOTHING)


def test_text_beside_numbers_or_nothing_makes_no_column_of_numbers() -> None:
    columns = tuple(Column(name=name) for name in "abc")
    table = Table(title="t", columns=columns, rows=((1, 1, None), (None, "diverges", None)))
    assert [table.numeric(place) for place in range(3)] == [True, False, False]


def test_a_table_of_mappings_has_every_key_that_holds_a_scalar() -> None:
    table = table_of("t", [{"a_b": 1, "list": [1]}, {"c": "x", "a_b": None}])
    assert [column.name for column in table.columns] == ["a b", "c"]
    assert table.rows == ((1, None), (None, "x"))


def test_numbers_are_written_in_their_columns_form() -> None:
    assert Column(name="a", form="{:.2f}").text(1.234) == "1.23"
    assert Column(name="a").text(True) == "yes"
    assert Column(name="a", form="{:.2f}").text(7) == "7"


def test_a_column_that_says_nothing_can_be_dropped() -> None:
    table = Table(title="t", columns=(Column(name="a"), Column(name="b")), rows=((None, 0), (None, None)))
    assert table.without_empty_columns().rows == ((0,), (None,))
    assert [column.name for column in table.without_empty_columns().columns] == ["b"]


MANY = 10**9


def unpacked(packed: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return data


def cell(column: Any, row: int) -> Any:
    if isinstance(column, list):
        return column[row]
    return None if column["at"][row] < 0 else column["values"][column["at"][row]]


def test_every_trial_is_there_with_the_multipliers_that_were_stored(tmp_path: Path) -> None:
    results = load_results(write_store(tmp_path))
    data = unpacked(trial_data(results, MANY).packed)
    stored = results.trials.set_index("trial_id")
    ids = data["columns"]["trial_id"]
    assert sorted(ids) == sorted(stored.index)
    for row, trial_id in enumerate(ids):
        stored_row = stored.loc[trial_id]
        whole = json.loads(stored_row["resolved"])
        shown = cell(data["shared"]["resolved"], row)
        assert shown == {**whole, "roles": {role: whole["roles"][role] for role in shown["roles"]}}
        assert {"router", "expert_in", "readout"} <= set(shown["roles"])
        assert not {"dense_in", "dense_out", "shared_in"} & set(shown["roles"]), "the model has none"
        assert cell(data["columns"]["lr"], row) == stored_row["lr"]
        assert cell(data["columns"]["seed"], row) == stored_row["seed"]
        assert cell(data["columns"]["status"], row) == stored_row["status"]
        loss = cell(data["columns"]["validation_loss_nats"], row)
        assert (loss is None) == (stored_row["status"] != "finished")
        assert loss is None or loss == pytest.approx(stored_row["validation_loss_nats"], rel=1e-6)


def test_what_seeds_share_stands_once(tmp_path: Path) -> None:
    results = load_results(write_store(tmp_path, ("seeds: 2", "seeds: 5")))
    data = unpacked(trial_data(results, MANY).packed)
    assert len(data["columns"]["trial_id"]) == 90
    assert len(data["shared"]["resolved"]["values"]) == 18
    assert len(data["shared"]["setting"]["values"]) == 1


def test_the_shared_base_belongs_to_no_parameterization(tmp_path: Path) -> None:
    data = unpacked(trial_data(load_results(write_store(tmp_path)), MANY).packed)
    labels = [cell(data["columns"]["label"], row) for row in range(36)]
    assert {label: labels.count(label) for label in set(labels)} == {trials.BASE: 12, "completep-moe": 12, "sp": 12}


def test_what_was_not_run_is_there_as_missing_and_keeps_its_hps(tmp_path: Path) -> None:
    data = unpacked(trial_data(load_results(write_store(tmp_path, every=3)), MANY).packed)
    rows = [row for row in range(36) if cell(data["columns"]["status"], row) == "missing"]
    assert len(rows) == 24
    for row in rows:
        assert cell(data["columns"]["lr"], row) > 0
        assert cell(data["shared"]["resolved"], row) is None


def test_a_trial_that_the_sweep_no_longer_holds_is_said_to_be_so(tmp_path: Path) -> None:
    folder = write_store(tmp_path)
    path = folder / "sweep.yaml"
    text = path.read_text()
    assert text.count("    - 64.0\n") == 1
    path.write_text(text.replace("    - 64.0\n", ""))
    data = unpacked(trial_data(load_results(folder), MANY).packed)
    places = [cell(data["columns"]["axes"], row) for row in range(36)]
    assert places.count(trials.NOT_IN_SWEEP) == 24


def test_errors_are_kept_and_long_ones_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = load_results(write_store(tmp_path, failing=(0,)))
    assert EVIL in unpacked(trial_data(results, MANY).packed)["columns"]["error"]["values"][0]
    monkeypatch.setattr(trials, "ERROR_CHARACTERS", 5)
    (error,) = unpacked(trial_data(results, MANY).packed)["columns"]["error"]["values"]
    assert error == "Trace ... (cut; trials.parquet holds it)"


def test_too_much_leaves_the_multipliers_out_then_all_and_says_so(tmp_path: Path) -> None:
    results = load_results(write_store(tmp_path))
    full = trial_data(results, MANY)
    assert not full.left_out
    less = trial_data(results, len(full.packed) - 1)
    assert 0 < len(less.packed) < len(full.packed)
    assert less.left_out.startswith("the resolved multipliers and settings of 36 trials")
    assert unpacked(less.packed)["shared"]["resolved"] == []
    none = trial_data(results, len(less.packed) - 1)
    assert (none.packed, none.num_trials) == ("", 36)
    assert none.left_out.startswith("the table of 36 trials")
