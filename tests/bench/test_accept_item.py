"""One item in its own process: what it prints of tests and of errors, and what it measures of a made-up device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpxfer.bench import accept_item
from hpxfer.bench.accept_item import counts_of, main, run_tests
from hpxfer.bench.accept_items import ITEMS

TESTS = {
    "test_good.py": "def test_a(): pass\n",
    "test_bad.py": "def test_a(): pass\ndef test_b(): raise AssertionError\n",
    "test_skip.py": "import pytest\n@pytest.mark.skip\ndef test_a(): pass\n",
}


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in TESTS.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(accept_item, "tests_folder", lambda: tmp_path)
    return tmp_path


def test_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: str) -> tuple[int, list[object]]:
    import sys

    monkeypatch.setattr(
        accept_item,
        "pytest_command",
        lambda item, report, workers: [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", file],
    )
    code = run_tests("t-experts")
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]


test_of.__test__ = False  # type: ignore[attr-defined]


def test_tests_that_pass_are_counted(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = test_of(monkeypatch, capsys, "test_good.py")
    assert code == 0
    assert lines == [{"key": "t-experts", "passed": 1, "failed": 0, "skipped": 0, "failures": []}]


def test_a_test_that_fails_is_named(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = test_of(monkeypatch, capsys, "test_bad.py")
    assert code == 1
    assert lines == [{"key": "t-experts", "passed": 1, "failed": 1, "skipped": 0, "failures": ["test_bad::test_b"]}]


def test_tests_that_are_all_skipped_prove_nothing(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = test_of(monkeypatch, capsys, "test_skip.py")
    assert code == 1
    assert lines[1] == {"error": "no test ran: all were skipped"}


def test_an_error_of_the_run_counts_as_a_failure(tmp_path: Path) -> None:
    report = tmp_path / "junit.xml"
    report.write_text('<a><testcase classname="m" name="t"><error/></testcase><testcase name="u"/></a>')
    assert counts_of(report) == ({"passed": 1, "failed": 1, "skipped": 0}, ["m::t"])


def test_an_exception_is_named_and_ends_the_item(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(name: str) -> None:
        raise MemoryError(f"{name} needs 3 GiB")

    monkeypatch.setattr(accept_item, "measure", measure)
    assert main("env") == 1
    out = capsys.readouterr()
    assert json.loads(out.out) == {"error": "MemoryError: env needs 3 GiB"}
    assert "Traceback" in out.err


@pytest.mark.parametrize("name", [item.name for item in ITEMS if not item.tests])
def test_every_item_has_its_measurement(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurements themselves need a GPU; which one an item calls, and with what, does not."""
    called: list[str] = []
    for function in (
        *(
            "environment",
            "layer",
            "row_kernels",
            "router",
            "heads",
            "rate",
            "planned_stacks",
            "memory",
            "pieces",
            "base_profile",
            "tune",
        ),
    ):
        monkeypatch.setattr(accept_item, function, lambda *given, function=function: called.append(function))
    accept_item.measure(name)
    assert len(called) == 1
