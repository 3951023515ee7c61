"""Records of slow tests hold for the very same inputs, and for no others."""

from __future__ import annotations

from pathlib import Path

import pytest
import recorded
from recorded import digest_of, inputs_of


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(recorded, "ROOT", tmp_path)
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "head.py").write_text("BLOCK = 128\n")
    recorded._digest.cache_clear()
    return tmp_path


@pytest.mark.parametrize(
    ("file", "text"),
    [("kernels/head.py", "BLOCK = 64\n"), ("kernels/new.py", ""), ("kernels/blocks.json", "{}"), ("test.py", "2")],
)
def test_any_change_of_an_input_runs_the_tests_again(root: Path, file: str, text: str) -> None:
    (root / "test.py").write_text("1")
    before = digest_of(("kernels", "test.py"))
    recorded._digest.cache_clear()
    assert digest_of(("kernels", "test.py")) == before
    (root / file).write_text(text)
    recorded._digest.cache_clear()
    assert digest_of(("kernels", "test.py")) != before


def test_another_compiler_runs_the_tests_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest_of(("kernels",))
    monkeypatch.setattr(recorded, "version", lambda name: "9.9" if name == "triton" else "1.0")
    assert digest_of(("kernels",)) != before


def test_only_tests_of_kernels_are_recorded() -> None:
    found = inputs_of("tests/kernels/test_head.py") or ()
    assert "hpxfer/kernels" in found
    assert all((recorded.ROOT / path).exists() for path in found)
    assert "hpxfer/train" in (inputs_of("tests/kernels/test_strict_step.py") or ())
    assert inputs_of("tests/train/test_head.py") is None
