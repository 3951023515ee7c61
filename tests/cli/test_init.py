"""`hpxfer init`: a sweep file to start from, and never one that is overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import hpxfer

from hpxfer.cli.init import examples
from hpxfer.spec import load_sweep
from hpxfer.spec.yaml_file import read_yaml

SWEEPS = Path(__file__).parents[2] / "sweeps"
PUBLISHED = SWEEPS.parent / "results" / "published"


def test_every_committed_sweep_is_an_example() -> None:
    committed = [path for path in SWEEPS.rglob("*.yaml") if "cluster" not in path.parts]
    assert {path.stem: path.read_text() for path in committed} == {
        name: path.read_text() for name, path in examples().items()
    }


@pytest.mark.parametrize("name", sorted(examples()))
def test_an_example_is_written_and_can_be_planned(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = hpxfer(capsys, "init", name, "new/folder")
    path = Path("new", "folder", f"{name}.yaml")
    beside = sorted(examples()[name].parent.glob("*.py"))
    written = [path, *(path.with_name(each.name) for each in beside)]
    assert (code, out) == (0, "\n".join(["written:", *(f"  {each}" for each in written)]) + "\n")
    assert [each.read_bytes() for each in written[1:]] == [each.read_bytes() for each in beside]
    assert f"hpxfer plan {path}" in err
    on: tuple[str, ...] = ()
    if examples()[name].parent.name == "full":  # too large for a CPU, and its data is beside it
        on = "--hardware", "h100"
        assert path.read_text() == examples()[name].read_text()
    elif recipe := (read_yaml(path).data.get("hps") or {}).get("recipe"):  # another sweep writes it
        (path.parent / recipe).parent.mkdir(parents=True)
        own = PUBLISHED / Path(recipe).parent.name / "recipe.yaml"
        other = own if own.exists() else PUBLISHED / "quickstart" / "recipe.yaml"
        (path.parent / recipe).write_bytes(other.read_bytes())
    elif beside:  # the folder of a trainer is part of a sweep, and not of its trials
        assert load_sweep(path).trainer.digests == load_sweep(examples()[name]).trainer.digests
    else:
        assert load_sweep(path) == load_sweep(examples()[name])
    assert hpxfer(capsys, "plan", path, *on)[0] == 0


def test_the_default_stands_here_and_is_commented(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = hpxfer(capsys, "init", "--json")
    assert (code, json.loads(out)) == (0, {"sweep": "quickstart.yaml"})
    assert Path("quickstart.yaml").read_text().count("#") > 8


def test_a_file_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "quickstart.yaml"
    path.write_text("mine")
    code, out, err = hpxfer(capsys, "init", "quickstart", tmp_path)
    assert (code, out, path.read_text()) == (2, "", "mine")
    assert err == f"hpxfer: {path}: must not exist yet, as it would be overwritten; name another folder\n"


def test_a_trainer_is_never_overwritten_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text("mine")
    code, out, err = hpxfer(capsys, "init", "own_numpy", tmp_path)
    assert (code, out, path.read_text()) == (2, "", "mine")
    assert err == f"hpxfer: {path}: must not exist yet, as it would be overwritten; name another folder\n"
    assert [each.name for each in tmp_path.iterdir()] == ["train.py"]


def test_a_folder_that_is_a_file_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    code, _, err = hpxfer(capsys, "init", "quickstart", tmp_path / "file")
    assert code == 2
    assert "quickstart.yaml: cannot be written: " in err


def test_an_unknown_name_is_told_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = hpxfer(capsys, "init", "quikstart", tmp_path)
    assert code == 2
    rest = f"--list names all {len(examples())}, and a folder comes after the name\n"
    assert err == f"hpxfer: NAME: unknown example 'quikstart'; did you mean 'quickstart'?; {rest}"
    assert not list(tmp_path.iterdir())


def test_a_name_like_no_other_is_told_where_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = hpxfer(capsys, "init", "foo", tmp_path)
    rest = f"--list names all {len(examples())}, and a folder comes after the name\n"
    assert (code, err) == (2, f"hpxfer: NAME: unknown example 'foo'; {rest}")


def test_the_list_says_what_each_example_asks(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = hpxfer(capsys, "init", "--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [*examples()]
    code, out, _ = hpxfer(capsys, "init", "--list", "--json")
    assert (code, list(json.loads(out))) == (0, [*examples()])
    assert all(json.loads(out).values())
