"""A checkpoint that is damaged, foreign or of another version is not used. A full disk ends no training."""

from __future__ import annotations

import errno
import functools
import logging
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupted import always, resealed, run
from laws import examples
from safetensors.torch import save_file
from tiny_trials import BASE, numbers, trial

from hpxfer.train import checkpoint, checkpoints
from hpxfer.train.checkpoint import read
from hpxfer.train.checkpoints import BadCheckpoint, Checkpoints
from hpxfer.train.device import CPU
from hpxfer.trial import Setting, Trial
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack

CUT = 4


def stack_of(setting: Setting) -> list[Trial]:
    shape = replace(BASE, depth=1, num_experts=2)
    return [replace(trial(setting, shape, seed=seed), id=f"damage {seed}") for seed in range(2)]


@functools.cache
def undisturbed(setting: Setting) -> tuple[TrialResult, ...]:
    return run(stack_of(setting), None)[2]


@functools.cache
def sound(setting: Setting, folder: Path) -> tuple[Path, bytes]:
    """Return a checkpoint's path and its bytes."""
    run(stack_of(setting), always(folder), until=CUT)
    (found,) = Checkpoints(folder).usable()
    return folder / found.name, (folder / found.name).read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damage") / "checkpoints"


@settings(max_examples=examples(60), deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), header=st.booleans())
def test_one_wrong_bit_anywhere_is_noticed(
    setting: Setting, folder: Path, where: float, bit: int, header: bool
) -> None:
    path, whole = sound(setting, folder)
    span = 8 + int.from_bytes(whole[:8], "little") if header else len(whole)
    at = int(where * span)
    path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
    try:
        with pytest.raises(BadCheckpoint):
            read(path, Stack(trials=tuple(stack_of(setting))), CPU)
    finally:
        path.write_bytes(whole)
    read(path, Stack(trials=tuple(stack_of(setting))), CPU)


@settings(max_examples=examples(20), deadline=None)
@given(where=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_short_is_noticed(setting: Setting, folder: Path, where: float) -> None:
    path, whole = sound(setting, folder)
    path.write_bytes(whole[: int(where * len(whole))])
    try:
        with pytest.raises(BadCheckpoint):
            read(path, Stack(trials=tuple(stack_of(setting))), CPU)
    finally:
        path.write_bytes(whole)


def spoil(path: Path) -> None:
    """Flip the last bit of a file, which belongs to a tensor."""
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "text": lambda path: path.write_text("no tensors here\n" * 100),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a tensor's bit": lambda path: spoil(path),
    "another's file": lambda path: save_file({"weight": torch.ones(3)}, path, metadata={"format": "pt"}),
    "an older trainer": lambda path: resealed(path, trainer_version=2),
    "another format": lambda path: resealed(path, format=checkpoints.FORMAT + 1),
    "another torch": lambda path: resealed(path, how={"torch": "1.0"}),
    "another layout": lambda path: resealed(path, layout=[]),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_training_starts_over_and_says_why(
    setting: Setting, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = always(tmp_path)
    run(stack_of(setting), spec, until=CUT)
    (found,) = Checkpoints(tmp_path).usable()
    DAMAGES[damage](tmp_path / found.name)
    with caplog.at_level(logging.WARNING):
        steps, _, results = run(stack_of(setting), spec)
    assert steps == list(range(setting.steps))
    assert [numbers(result) for result in results] == [numbers(result) for result in undisturbed(setting)]
    assert {result.resumes for result in results} == {0}
    assert any("not used" in line or "without a checkpoint" in line for line in caplog.messages)


def test_a_sound_file_behind_a_damaged_one_is_used(setting: Setting, tmp_path: Path) -> None:
    stack, spec = stack_of(setting), always(tmp_path)
    run(stack, spec, until=3)
    run(stack[:1], spec, until=5)
    further, nearer = Checkpoints(tmp_path).candidates([stack[0].id])
    assert (further.step, nearer.step) == (5, 3)
    spoil(tmp_path / further.name)
    steps, _, results = run(stack[:1], spec)
    assert steps == [3, 4, 5]
    assert numbers(results[0]) == numbers(undisturbed(setting)[0])


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond this many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_no_training_and_is_said_once(
    setting: Setting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = always(tmp_path)
    with files_up_to(4096), caplog.at_level(logging.WARNING):
        _, _, results = run(stack_of(setting), spec)
    assert [numbers(result) for result in results] == [numbers(result) for result in undisturbed(setting)]
    assert len(caplog.messages) == 1
    assert "goes on without a checkpoint" in caplog.messages[0]
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".tmp"] == ["driver"]


def test_what_was_kept_before_the_disk_was_full_stays(setting: Setting, tmp_path: Path) -> None:
    stack, spec = stack_of(setting), always(tmp_path)
    run(stack, spec, until=3)
    with files_up_to(4096):
        run(stack, spec, until=5)
    assert run(stack, spec)[0] == [3, 4, 5]


def test_a_failure_of_the_disk_is_not_forever(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [OSError(errno.ENOSPC, "No space left on device")] * 2
    plain = checkpoint.save_file

    def failing(*args: object, **options: object) -> None:
        if failures:
            raise failures.pop()
        plain(*args, **options)

    monkeypatch.setattr(checkpoint, "save_file", failing)
    run(stack_of(setting), always(tmp_path), until=5)
    assert [line.count("No space left on device") for line in caplog.messages] == [1]
    (found,) = Checkpoints(tmp_path).usable()
    assert found.step == 5
