"""`hpxfer report`: what it writes where, what it refuses, and what it leaves alone."""

from __future__ import annotations

import errno
import gc
import json
import os
import sys
import webbrowser
from pathlib import Path

import pytest
from made_runs import run_status
from report_cases import Stub, write_store

from hpxfer.analysis.references import ReferenceCurve, References
from hpxfer.cli import main
from hpxfer.errors import HpxferError
from hpxfer.progress.status import write
from hpxfer.recipe import recipe_of
from hpxfer.report.write import FORMATS, write_report
from hpxfer.results import load_results
from hpxfer.spec import parse_sweep
from hpxfer.storage.lease import LEASE_FILE


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One figure that nothing is drawn for, where which figures there are does not matter."""
    made: tuple[list[Stub], list[str]] = ([Stub(name="transfer-lr-width")], ["surface: one HP"])
    monkeypatch.setattr("hpxfer.report.write.all_figures", lambda results, analysis: made)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("store") / "small")


def test_a_page_with_every_figure_and_its_data_is_written_beside_the_results(tmp_path: Path) -> None:
    folder = write_store(tmp_path / "small")
    before = {path.name for path in folder.iterdir()}
    found = write_report([folder])
    assert {path.name for path in folder.iterdir()} - before == {
        *("report.html", "figures", "transfer.png", "transfer.svg"),
    }
    assert [path.name for path in found.files] == ["transfer.png", "transfer.svg", "report.html", "figures"]
    assert (folder / "report.html").stat().st_size < 3_000_000
    drawn = sorted(path.name for path in (folder / "figures").iterdir())
    assert "transfer-lr-width.svg" in drawn
    assert {name.rpartition(".")[2] for name in drawn} == {"svg", "csv"}


def test_json_holds_the_whole_analysis(store: Path, tmp_path: Path) -> None:
    write_report([store], output=tmp_path, form="json")
    data = json.loads((tmp_path / "report.json").read_text())
    (sweep,) = data["sweeps"]
    verdicts = {verdict["parameterization"]: verdict["verdict"] for verdict in sweep["verdicts"]}
    assert verdicts == {"completep-moe": "transfers", "sp": "drifts"}
    assert sweep["analysis"]["reports"][0]["findings"]
    assert parse_sweep(sweep["sweep_yaml"]).name == "small"


def test_text_writes_the_transfer_figure_alone(store: Path, tmp_path: Path) -> None:
    found = write_report([store], output=tmp_path, form="text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["transfer.png", "transfer.svg"]
    assert "completep-moe: transfers" in found.text()


@pytest.mark.slow
@pytest.mark.usefixtures("stubs")
def test_several_folders_make_one_page_above_them(tmp_path: Path) -> None:
    folders = [write_store(tmp_path / name, ("name: small", f"name: {name}")) for name in ("a", "b")]
    found = write_report(folders)
    page = (tmp_path / "report.html").read_text()
    assert "Side by side" in page
    assert [sorted(path.name for path in folder.iterdir() if path.is_dir()) for folder in folders] == [[], []]
    assert (tmp_path / "figures" / "b" / "transfer-lr-width.svg").is_file()
    assert len(found.to_dict()["reports"]) == 2
    assert found.text().count("Does lr transfer?") == 2


@pytest.mark.slow
@pytest.mark.usefixtures("stubs")
def test_folders_apart_need_an_output(tmp_path: Path) -> None:
    folders = [write_store(tmp_path / place / "s") for place in "ab"]
    with pytest.raises(HpxferError, match=r"^--output: must be given, as the results folders do not lie side by side"):
        write_report(folders)
    write_report(folders, output=tmp_path / "out")
    assert (tmp_path / "out" / "figures" / "s-2" / "transfer.svg").is_file()


def test_a_link_that_leads_in_a_circle_is_no_results_folder(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "a")
    with pytest.raises(HpxferError, match=r"a: must be a results folder with sweep\.yaml"):
        write_report([tmp_path / "a", tmp_path / "b"])


@pytest.mark.usefixtures("stubs")
def test_another_hp_or_loss_is_judged_when_asked_for(store: Path, tmp_path: Path) -> None:
    found = write_report([store], output=tmp_path, loss="final_window", form="json")
    assert found.reports[0].loss == "final_window"
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["sweeps"][0]["analysis"]["loss"] == "final_window"


def test_reference_curves_are_in_the_table_and_in_the_figure(store: Path, tmp_path: Path) -> None:
    curve = ReferenceCurve(name="gpt2", losses=(5.0, 4.0, 3.5), steps=(10.0, 50.0, 5000.0))
    found = write_report([store], output=tmp_path, form="json", full=True, references=References(curves=(curve,)))
    answers = json.loads((tmp_path / "report.json").read_text())["sweeps"][0]["analysis"]["steps_to_loss"]["rows"]
    for arm in ("completep-moe", "sp"):
        assert "gpt2" in {row["reference"] for row in answers if row["parameterization"] == arm}
    assert "After how many steps has each arm the loss of its reference? width: completep-moe " in found.text()
    assert "gpt2" in found.text()
    assert any("gpt2" in path.read_text() for path in (tmp_path / "figures").glob("steps-to-loss-*.csv"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"form": "htm"}, "--format: unknown format 'htm'; did you mean 'html'"),
        ({"form": "text", "show": True}, "--open: must have a file to open"),
        ({"hp": "init_scale"}, "hp: must be scanned by the sweep, got 'init_scale'"),
        ({"loss": "train"}, "loss: unknown loss 'train'; legal: final_window, validation"),
        ({"references": References(arm="w48")}, "reference: must be a shape of the sweep, got 'w48'; the shapes are"),
        ({"references": References(arm="w64"), "form": "text"}, "got --format text; add --full"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(
    given: dict[str, object], message: str, store: Path, tmp_path: Path
) -> None:
    with pytest.raises(HpxferError) as caught:
        write_report([store], output=tmp_path / "out", **given)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_follow_up_is_a_sweep_and_never_overwrites(tmp_path: Path) -> None:
    folder = write_store(tmp_path / "small", ("seeds: 2", "seeds: 1"))
    path = tmp_path / "sweeps" / "more.yaml"
    found = write_report([folder], form="text", followup=path)
    assert path in found.files
    text = path.read_text()
    assert len(parse_sweep(text).seeds) > 1
    assert f"# To train only what is new: hpxfer run {path} --results {tmp_path}\n" in text
    assert found.next_steps[0].endswith(f"hpxfer run {path} --results {tmp_path}")
    assert "rename" not in text
    path.write_text("mine")
    with pytest.raises(HpxferError, match="must not be there yet"):
        write_report([folder], form="text", followup=path)
    assert path.read_text() == "mine"


@pytest.mark.slow
def test_after_a_follow_up_is_written_the_next_step_is_to_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_seed = ("seeds: 2", "seeds: 1")
    monkeypatch.chdir(tmp_path)
    default, elsewhere = (write_store(Path(root) / "small", one_seed) for root in ("results", "other"))
    renamed = write_store(Path("results") / "old", one_seed)
    adds = "adds 36 trials to the sweep: 2 more seeds, 3 in all (36 new trials)."

    def next_step_of(folder: Path, name: str) -> str:
        first, last = write_report([folder], form="text", followup=Path(name)).next_steps[0].splitlines()
        assert first == f"{name} {adds}"
        return last

    assert next_step_of(default, "a.yaml") == "Next: hpxfer run a.yaml"
    assert next_step_of(elsewhere, "b.yaml") == f"Next: hpxfer run b.yaml --results {tmp_path / 'other'}"
    rename = f"rename the results folder {tmp_path / 'results' / 'old'} to small"
    assert next_step_of(renamed, "c.yaml") == f"Next: {rename}; then: hpxfer run c.yaml"


def test_of_a_folder_that_a_run_still_writes_what_is_missing_is_to_come(tmp_path: Path) -> None:
    folder = write_store(tmp_path / "small", every=3)
    assert "run the sweep again" in write_report([folder], form="text").next_steps[0]
    write(folder, state="running", run="a", counter=1, run_status=run_status())
    (folder / LEASE_FILE).write_text("1")
    found = write_report([folder], form="text")
    assert found.next_steps == ("Next: nothing yet. The run goes on, and 24 trials are still to come.",)
    assert found.text().startswith("The run goes on. 12 of 36 trials have a result")
    assert "again" not in found.text()


def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of `hpxfer report`."""
    monkeypatch.setattr(sys, "argv", ["hpxfer", "report", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.mark.usefixtures("stubs")
@pytest.mark.parametrize("form", ["html", "json"])
def test_the_verdict_is_printed_even_if_no_file_can_be_written(
    form: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = command(monkeypatch, capsys, store, "--output", tmp_path / "file" / "x", "--format", form)
    assert code == 2
    assert "width | completep-moe: transfers" in out
    assert "Next: use the tuned lr" in out
    assert "written:" not in out
    assert err == (
        f"hpxfer: {tmp_path / 'file' / 'x'}: the figure cannot be written: Not a directory; "
        "choose another folder with --output\n"
    )


def read_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make writing to a folder fail as on a read-only disk, also for root."""

    def refuses(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(folder))

    monkeypatch.setattr("hpxfer.host.files.write_files", refuses)


def test_the_text_of_a_read_only_folder_needs_no_figure(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_only(store, monkeypatch)
    code, out, err = command(monkeypatch, capsys, store, "--format", "text")
    assert code == 0
    assert "width | completep-moe: transfers" in out
    assert err == (
        f"warning: {store}: the figure cannot be written: Read-only file system; choose another folder with --output\n"
    )
    code, out, err = command(monkeypatch, capsys, store, "--format", "text", "--output", store)
    assert code == 2
    assert "width | completep-moe: transfers" in out
    assert err.startswith(f"hpxfer: {store}: the figure cannot be written: Read-only file system; ")


def test_the_verdict_is_printed_even_if_the_follow_up_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_store(tmp_path / "small", ("seeds: 2", "seeds: 1"))
    more = folder / "sweep.yaml" / "more.yaml"
    code, out, err = command(monkeypatch, capsys, folder, "--format", "text", "--write-followup", more)
    assert code == 2
    assert "width | completep-moe: undecided" in out
    assert "--write-followup more.yaml" in out
    assert err.startswith(f"hpxfer: {more}: cannot be written: ")


def test_a_sweep_in_which_all_diverged_is_not_followed_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, more = write_store(tmp_path / "small", diverging=True), tmp_path / "more.yaml"
    code, out, err = command(monkeypatch, capsys, folder, "--format", "text", "--write-followup", more)
    why = "all 36 trials diverged: look at the LRs, 0.001953 to 0.0625, as even the smallest may be too large"
    assert code == 2
    assert not more.exists()
    assert f"Next: find out why {why}.\n" in out
    assert "find out why trials diverge at every HP value" in out
    assert "--write-followup" not in out
    assert err.startswith(f"hpxfer: {more}: no follow-up is written: {why}\n")


def test_without_anything_undecided_there_is_no_follow_up(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "more.yaml"
    found = write_report([store], output=tmp_path / "out", form="text", followup=path)
    assert not path.exists()
    why = "no verdict is undecided or lacks a control"
    assert found.warnings == (f"{path}: no follow-up is written: {why}",)
    assert found.not_written == ()


def test_a_follow_up_of_several_folders_is_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(HpxferError, match="must have one results folder"):
        write_report([store, store], output=tmp_path, followup=tmp_path / "more.yaml")


@pytest.mark.usefixtures("stubs")
def test_the_collector_of_cycles_is_left_as_it_was(store: Path, tmp_path: Path) -> None:
    write_report([store], output=tmp_path / "a")
    assert gc.isenabled()
    with pytest.raises(HpxferError):
        write_report([store], output=tmp_path / "b", hp="nothing")
    assert gc.isenabled()


@pytest.mark.usefixtures("stubs")
@pytest.mark.parametrize("form", FORMATS)
def test_a_store_with_a_few_trials_is_reported_in_every_format(form: str, tmp_path: Path) -> None:
    folder = write_store(tmp_path / "small", every=7, failing=(0, 7))
    found = write_report([folder], form=form)
    assert found.reports[0].findings
    assert found.reports[0].findings[0].verdict == "undecided"


def test_a_half_finished_store_has_its_figures_or_why_there_are_none(tmp_path: Path) -> None:
    folder = write_store(tmp_path / "small", every=7, failing=(0, 7))
    write_report([folder], form="json")
    (sweep,) = json.loads((folder / "report.json").read_text())["sweeps"]
    assert "transfer-lr-width" in {figure["name"] for figure in sweep["figures"]}
    assert any(reason.startswith("surface: ") for reason in sweep["not_drawn"])
    assert sweep["failures"]
    assert sweep["progress"]["text"].startswith("4 of 36 trials have a result")


@pytest.mark.usefixtures("stubs")
def test_open_opens_the_page_and_only_when_asked(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    write_report([store], output=tmp_path, form="json")
    assert opened == []
    write_report([store], output=tmp_path, form="json", show=True)
    assert opened == [(tmp_path / "report.json").as_uri()]


@pytest.mark.usefixtures("stubs")
def test_the_command_says_the_verdict_and_where_the_page_is(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["hpxfer", "report", str(store), "--output", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    out = capsys.readouterr().out
    assert "width | completep-moe: transfers" in out
    assert f"  {tmp_path / 'report.html'}\n" in out


def test_a_sweep_of_fixed_hps_says_what_a_larger_shape_gains_and_has_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_store(tmp_path / "small", ("lr: {log2: [-9, -4]}", "lr: [0.015625]"))
    opening = "Does a larger model always win at the same HPs, and by how much? width: completep-moe -0."
    code, text, _ = command(monkeypatch, capsys, str(folder))
    assert (code, text.startswith(opening)) == (0, True)
    assert "(each next shape is surely better)" in text
    assert "Next: nothing is left to run." in text
    assert not any(word in text for word in ("undecided", "transfers, no", "follow", "transfer.png"))
    page = (folder / "report.html").read_text()
    assert page.index("nats per doubling of width") < page.index("Next: nothing is left to run.")
    _, text, _ = command(monkeypatch, capsys, str(folder), "--json")
    data = json.loads(text)
    assert (data["headline"].startswith(opening), data["findings"]) == (True, [])
    more = tmp_path / "more.yaml"
    code, _, errors = command(monkeypatch, capsys, str(folder), "--write-followup", str(more))
    assert (code, more.exists()) == (0, False)
    assert "every HP has one value, so that no verdict is asked for" in errors
    with pytest.raises(HpxferError, match="every HP has one value, so that nothing was tuned"):
        recipe_of(load_results(folder))


def test_a_report_opens_with_the_statistics_that_the_sweep_is_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_store(tmp_path / "small", ("seeds: 2\n", "seeds: 2\njudge: {about: [collapse, routers]}\n"))
    _, text, _ = command(monkeypatch, capsys, str(folder), "--format", "text")
    first, second, third, *_ = text.splitlines()
    assert first.startswith("From which step do the losses of shapes part? width: completep-moe ")
    assert second.startswith("What do routers do as the model grows? This is not known: ")
    assert third.startswith("Use lr 2^-")
    _, text, _ = command(monkeypatch, capsys, str(folder), "--json")
    assert json.loads(text)["headline"] == " ".join([first, second, third])
    page = (folder / "report.html").read_text()
    assert page.index("From which step") < page.index("Use lr 2^-") < page.index('id="figures"')
