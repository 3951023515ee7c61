"""URIs of storage, and checkpoints and weights on a real S3 server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from command_line import hpxfer
from fixture_types import Capsys, Patch
from hypothesis import given
from hypothesis import strategies as st
from s3_server import Server
from sweep_text import SWEEP
from tiny import write_tiny
from tiny_trials import numbers, text_setting, trial

from hpxfer.driver import run
from hpxfer.errors import HpxferError
from hpxfer.host.uri import Uri, is_uri, parse_root, storage_problem
from hpxfer.spec.load import parse_sweep
from hpxfer.storage import objects_at
from hpxfer.train import checkpoint
from hpxfer.train.checkpoints import Checkpoints, CheckpointSpec
from hpxfer.train.trainer import train
from hpxfer.trial.events import Ended, Progress
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack
from hpxfer.weights import kept

SEGMENTS = st.text(st.characters(codec="utf-8", exclude_characters='/?"\\'), min_size=1, max_size=12).filter(
    lambda text: text.isprintable() and text not in (".", "..") and "::" not in text
)


@pytest.mark.parametrize(
    ("text", "key", "spelled"),
    [
        ("s3://bucket", "bucket", "s3://bucket"),
        ("s3://bucket/a/b//", "bucket/a/b", "s3://bucket/a/b"),
        ("S3://bucket/a b/50%20", "bucket/a b/50%20", "s3://bucket/a b/50%20"),
        ("s3a://bucket/a", "bucket/a", "s3://bucket/a"),
        ("gs://bucket/a", "bucket/a", "gs://bucket/a"),
        ("s3://bucket/a?region=eu-west-1", "bucket/a", "s3://bucket/a?region=eu-west-1"),
        ("abfs://box@account.dfs.core.windows.net/a", "box@account.dfs.core.windows.net/a", None),
    ],
)
def test_a_uri_is_read_as_it_stands(text: str, key: str, spelled: str | None) -> None:
    found = parse_root(text)
    assert found.key == key
    assert str(found) == (spelled or text)
    assert (found / "quickstart").key == f"{key}/quickstart"


@pytest.mark.parametrize(
    ("text", "path"),
    [("results", "results"), ("/shared/a b", "/shared/a b"), ("file:///shared/a%20b", "/shared/a%20b"), ("a:b", "a:b")],
)
def test_a_folder_is_a_folder(text: str, path: str) -> None:
    assert parse_root(text) == Path(path)
    assert parse_root(Path(path)) == Path(path)
    assert not is_uri(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be a folder or a URI, e.g. results or s3://bucket/prefix, got ''"),
        ("s3://", "must be s3://BUCKET/PREFIX"),
        ("s3://bucket/a//b", "without empty parts"),
        ("s3://bucket/../other", "'..'"),
        ('s3://bucket/a"b', "quotes"),
        ("s3://bucket/a?access_key=AKIA", "keys go in the environment"),
        ("s3://bucket/a?region", "'region'"),
        ("https://example.com/a", "or a URI with one of s3://, gs://, az://, abfs://, abfss://, got"),
        ("simplecache::s3://bucket/a", "must be a folder or a URI"),
        ("S3:/bucket/a", "must be a folder or a URI"),
        ("file://host/a", "file:///absolute/path"),
    ],
)
def test_what_is_no_root_is_refused(text: str, said: str) -> None:
    with pytest.raises(HpxferError) as error:
        parse_root(text)
    assert said in str(error.value)


@pytest.mark.parametrize("text", ["s3://AKIA:s3cr3t@bucket/a", "gs://s3cr3t@bucket", "sftp://me:s3cr3t@host/a"])
def test_credentials_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(HpxferError, match="must hold no credentials") as error:
        parse_root(text)
    assert "s3cr3t" not in str(error.value)


@given(host=st.from_regex(r"[a-z0-9][a-z0-9-]{1,20}", fullmatch=True), path=st.lists(SEGMENTS, max_size=4))
def test_spelling_and_reading_agree(host: str, path: list[str]) -> None:
    uri = Uri(scheme="s3", host=host, path=tuple(path))
    assert parse_root(str(uri)) == uri


def test_a_sweep_names_its_storage() -> None:
    assert parse_sweep(SWEEP + "storage: s3://bucket/prefix\n").storage == "s3://bucket/prefix"
    assert parse_sweep(SWEEP).storage is None
    assert storage_problem("/shared/results") is storage_problem("file:///shared/results") is None


@pytest.mark.parametrize("text", ["s3://key:secret@bucket", "'results'"])
def test_a_sweep_with_storage_that_is_none_is_refused(text: str) -> None:
    line = SWEEP.count("\n") + 1
    with pytest.raises(HpxferError, match=rf"<sweep>:{line}: storage: must ") as error:
        parse_sweep(f"{SWEEP}storage: {text}\n")
    assert "secret" not in str(error.value)


def trained(stack: Stack, spec: CheckpointSpec | None, steps: int | None = None) -> tuple[TrialResult, ...]:
    """Return the results; none if the worker ends at its report of so many steps."""
    with mock.patch.object(checkpoint, "WRITE_SHARE", float("inf")), mock.patch("hpxfer.train.trainer.PROGRESS_S", 0.0):
        for event in train(stack, "cpu", checkpoints=spec):
            if isinstance(event, Progress) and event.step == steps:
                break
            if isinstance(event, Ended):
                return event.results
    return ()


def test_a_scheme_in_capitals_is_the_same_scheme(s3: str, s3_server: Server, monkeypatch: Patch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url.replace("http", "HTTP"))
    objects_at(f"{s3}/capitals").put("here", lambda path: path.write_bytes(b"1"))
    assert set(objects_at(f"{s3}/capitals").stamps()) == {"here"}


def test_a_training_goes_on_from_s3(s3: str, s3_names: Callable[[str], list[str]], tmp_path: Path) -> None:
    setting = text_setting(tmp_path)
    stack = Stack(trials=tuple(replace(trial(setting, seed=seed), id=f"s3 {seed}") for seed in range(2)))
    folder = Checkpoints(f"{s3}/tiny/checkpoints")
    spec = folder.start(0.0)
    assert spec is not None
    assert trained(stack, spec, steps=5) == ()
    (found,) = folder.usable()
    assert found.step == 4
    assert s3_names("tiny/checkpoints") == sorted(["driver", found.name])
    results = trained(stack, spec)
    assert [numbers(result) for result in results] == [numbers(result) for result in trained(stack, None)]
    assert {result.resumes for result in results} == {1}
    folder.end([result.trial_id for result in results])
    assert s3_names("tiny/checkpoints") == []


def test_storage_that_refuses_ends_no_training(s3: str, s3_server: Server, tmp_path: Path) -> None:
    setting = text_setting(tmp_path)
    stack = Stack(trials=(replace(trial(setting), id="s3 refused"),))
    spec = Checkpoints(f"{s3}/tiny/checkpoints").start(0.0)
    with s3_server.forbidding():
        (result,) = trained(stack, spec)
        assert Checkpoints(f"{s3}/tiny/checkpoints").start(0.0) is None
    assert result.status == "finished"
    assert result.resumes == 0


@pytest.mark.slow
def test_a_run_keeps_weights_in_s3_and_the_command_reads_them(
    s3: str, s3_names: Callable[[str], list[str]], tmp_path: Path, capsys: Capsys
) -> None:
    edits = (("width: [16, 32]", "width: [16]"), ("seeds: 2", "seeds: 1"), ("workers: 2", "workers: 1, keep: last"))
    trials = run(write_tiny(tmp_path, *edits), results=s3).trials
    assert s3_names("tiny/weights") == sorted(kept.name_of(trial_id) for trial_id in trials["trial_id"])
    (tmp_path / "w").mkdir()
    code, _, err = hpxfer(capsys, "weights", f"{s3}/tiny", "--best", "--out", tmp_path / "w", "--format", "safetensors")
    assert code == 0, err
    assert sorted(path.name for path in (tmp_path / "w").iterdir()) == ["hpxfer.json", "model.safetensors"]


def test_a_run_that_cannot_keep_weights_says_so_before_it_trains(s3: str, s3_server: Server) -> None:
    folder = parse_root(f"{s3}/tiny/weights")
    with s3_server.forbidding(), pytest.raises(HpxferError, match="weights must be stored here"):
        kept.start(folder)
    kept.end(folder)
