"""The files of a user's own trainer: which ones count, and where they lie."""

from __future__ import annotations

from pathlib import Path

import pytest
from user_sweeps import write_user

from hpxfer.errors import HpxferError
from hpxfer.spec import dump_sweep, load_sweep, parse_sweep
from hpxfer.spec.trainer_files import digested


def digests(folder: Path, files: str) -> dict[str, str]:
    path = write_user(folder, "finish()", ("files: [train.py]", f"files: {files}"))
    trainer = digested(load_sweep(path)).trainer
    assert trainer is not None
    return trainer.digests or {}


def test_a_digest_follows_the_content_alone(tmp_path: Path) -> None:
    first = digests(tmp_path, "[train.py]")
    assert [*first] == ["train.py"]
    assert digests(tmp_path, "['*.py']") == first
    other = tmp_path / "other"
    other.mkdir()
    assert digests(other, "[train.py]") == first
    (tmp_path / "helper.py").write_text("x = 1\n")
    assert digests(tmp_path, "[train.py]") == first
    assert digests(tmp_path, "['*.py', train.py]") == {
        **first,
        "helper.py": digests(tmp_path, "[helper.py]")["helper.py"],
    }
    (tmp_path / "helper.py").write_text("x = 2\n")
    assert digests(tmp_path, "[helper.py]") != {"helper.py": digests(other, "[train.py]")["train.py"]}


def test_a_glob_passes_over_what_is_no_code(tmp_path: Path) -> None:
    """Above all over results, which would give each run other ids than the one before."""
    for name in (".git/x.py", "a/__pycache__/x.py", ".venv/lib/x.py", "results/mine/runs/1/x.py", "a/b/x.py", "c/x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / "results/mine/sweep.yaml").write_text("name: mine\n")
    (tmp_path / "results/mine/trials.parquet").write_text("")
    (tmp_path / "c/sweep.yaml").write_text("name: mine\n")  # a sweep beside its code is no results folder
    assert [*digests(tmp_path, "['**/*.py']")] == ["a/b/x.py", "c/x.py", "train.py"]
    assert [*digests(tmp_path, "[.git/x.py]")] == [".git/x.py"]  # named as it is


@pytest.mark.parametrize("name", ["nope.py", "'**/*.nope'", "folder", "'[a'"])
def test_a_name_without_files_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(HpxferError, match=r"^trainer.files: .* must name files below"):
        digests(tmp_path, f"[{name}]")


def test_a_stored_sweep_keeps_its_digests_where_its_files_are_not(tmp_path: Path) -> None:
    path = write_user(tmp_path)
    spec = digested(load_sweep(path))
    stored = parse_sweep(dump_sweep(spec))
    assert stored == spec
    (tmp_path / "train.py").unlink()
    assert digested(stored) == spec


def test_the_folder_is_that_of_the_sweep_file(tmp_path: Path) -> None:
    trainer = load_sweep(write_user(tmp_path)).trainer
    assert trainer is not None
    assert trainer.folder == str(tmp_path.resolve() / "")
    inner = load_sweep(write_user(tmp_path, "", ("  files", "  folder: code\n  files"))).trainer
    assert inner is not None
    assert inner.folder == str(tmp_path.resolve() / "code")
