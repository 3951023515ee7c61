"""The items of an acceptance: names that stay, needs that come before, and tests that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpxfer.bench import accept_items
from hpxfer.bench.accept_items import ITEMS, PLANS, chosen, item_named, pytest_command, runnable
from hpxfer.errors import HpxferError

ROOT = Path(__file__).parents[2]
# Numbers of an older version stand under these names.
KEPT = {
    *("env", "t-experts", "t-strict", "t-train", "k-layer-512", "k-layer-2048", "k-rows", "tune-2048", "tune-512"),
    *("r-base-32k", "r-base-32k-dense", "r-stack-64", "r-stack-8", "r-alone", "r-base-64k", "p-base-32k"),
    *("r-strict-32k", "r-large", "r-large-dense", "t-all-kernels"),
}


def test_the_names_of_before_are_there_once() -> None:
    names = [item.name for item in ITEMS]
    assert len(set(names)) == len(names)
    assert set(names) >= KEPT
    assert {item.plan for item in ITEMS} == set(PLANS)


def test_plans_stand_in_order_and_needs_come_first() -> None:
    places = [PLANS.index(item.plan) for item in ITEMS]
    assert places == sorted(places)
    seen: set[str] = set()
    for item in ITEMS:
        assert set(item.needs) <= seen, item.name
        assert all(item_named(need).plan == "correct" for need in item.needs)
        seen.add(item.name)


@pytest.mark.parametrize("item", [item for item in ITEMS if item.name.startswith(("k-", "r-", "p-", "m-", "tune-"))])
def test_what_measures_kernels_needs_their_tests(item: accept_items.Acceptance) -> None:
    assert "t-experts" in item.needs


@pytest.mark.parametrize("item", [item for item in ITEMS if item.tests])
def test_the_tests_of_an_item_exist_and_some_are_for_a_gpu(item: accept_items.Acceptance) -> None:
    paths = [ROOT / test for test in item.tests if test.startswith("tests/")]
    assert paths
    for path in paths:
        files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        assert any("mark.gpu" in file.read_text() for file in files), path


def test_every_gpu_test_of_the_kernels_is_in_an_item_that_comes_early() -> None:
    early = {test for item in ITEMS if item.plan == "correct" for test in item.tests}
    files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests/kernels").glob("test_*.py"))]
    assert {file for file in files if "mark.gpu" in (ROOT / file).read_text()} <= early


def test_the_correct_ones_come_first_whatever_is_asked() -> None:
    assert chosen("tune, correct", ())[0].plan == "correct"
    assert {item.plan for item in chosen("tune, correct", ())} == {"tune", "correct"}
    assert chosen(None, ()) == ITEMS
    assert [item.name for item in chosen(None, ["tune-512", "env"])] == ["env", "tune-512"]


@pytest.mark.parametrize(
    ("plan", "names", "message"),
    [
        ("correct,kernel", (), r"--plan: must be some of correct, kernels, .*, got 'kernel'"),
        ("", (), r"--plan: must be some of .*, got ''"),
        (None, ("r-bas-32k",), r"--item: unknown item 'r-bas-32k'; did you mean 'r-base-32k'\?"),
        ("tune", ("env",), "--item names what is run; leave out --plan"),
    ],
)
def test_what_is_unknown_is_refused(plan: str | None, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(HpxferError, match=message):
        chosen(plan, names)


def test_without_a_clone_the_tests_are_skipped_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = item_named("t-experts")
    assert runnable(item).missing is None
    assert "they are in a clone of the repository" in (runnable(item, tmp_path).missing or "")
    assert runnable(item_named("env"), tmp_path).missing is None
    monkeypatch.setattr(accept_items.importlib.util, "find_spec", lambda name: None)
    assert runnable(item).missing == "pytest is not installed; pip install pytest"


def test_the_tests_run_without_the_plugins_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: set[str] = {"xdist", "pytest_timeout"}
    monkeypatch.setattr(accept_items.importlib.util, "find_spec", lambda name: name if name in found else None)
    command = pytest_command(item_named("t-experts"), tmp_path / "junit.xml", 8)
    assert command[command.index("-n") + 1] == "8"
    assert "--timeout" in command
    found.clear()
    bare = pytest_command(item_named("t-experts"), tmp_path / "junit.xml", 8)
    assert "-n" not in bare
    assert "--timeout" not in bare
    assert bare[-len(item_named("t-experts").tests) :] == list(item_named("t-experts").tests)
