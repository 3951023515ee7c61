"""A checkpoint that is damaged, foreign, forged or of another version is not used, and a full disk ends no training."""

from __future__ import annotations

import errno
import functools
import json
import logging
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from safetensors import safe_open
from safetensors.torch import save_file
from tiny_trials import BASE, trial
from torch import Tensor
from trainings import always, facts, run

from hpxfer.train import checkpoint, checkpoints
from hpxfer.train.checkpoint import _hash, read
from hpxfer.train.checkpoints import BadCheckpoint, Checkpoints, sealed
from hpxfer.train.device import CPU
from hpxfer.trial import Setting, Trial
from hpxfer.trial.stack import Stack

CUT = 4
SMALL = replace(BASE, depth=1, num_experts=2)
WIDE = replace(SMALL, width=32, expert_width=32)


def stack_of(setting: Setting) -> list[Trial]:
    return [replace(trial(setting, SMALL, seed=seed), id=f"trial {seed}") for seed in range(2)]


@functools.cache
def undisturbed(setting: Setting) -> list[dict[str, Any]]:
    return facts(run(stack_of(setting), None)[2])


class Sound:
    """A checkpoint in a folder of its own, its facts and its bytes."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self.folder, self.trials = folder, stack_of(setting)
        run(self.trials, always(folder), until=CUT)
        (found,) = Checkpoints(folder).usable()
        self.path, self.facts = folder / found.name, dict(found.facts)
        self.content = self.path.read_bytes()

    def read(self) -> None:
        read(self.path, Stack(trials=tuple(self.trials)), CPU)

    def refused(self, content: bytes) -> None:
        """Check that the file is not read with this content."""
        self.path.write_bytes(content)
        with pytest.raises(BadCheckpoint):
            self.read()

    def passed_over(self, *, may_be_used: bool = False) -> None:
        """Check that neither a driver nor a worker fails, and that a worker takes no wrong numbers from the file."""
        folder = Checkpoints(self.folder)
        folder.resumable(self.trials)
        folder.clear([])
        why = None
        try:
            self.read()
        except BadCheckpoint as error:
            why = str(error)
        assert may_be_used if why is None else len(why) < 500

    @contextmanager
    def whole(self) -> Iterator[bytes]:
        """Put the file back as it was."""
        try:
            yield self.content
        finally:
            self.path.write_bytes(self.content)


@pytest.fixture(scope="module")
def sound(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return Sound(setting, tmp_path_factory.mktemp("sound") / "checkpoints")


def resealed(path: Path, of: Any = None, tensors: dict[str, Tensor | None] | None = None, **changes: object) -> None:
    """Write the file again with other facts and tensors under hashes that fit, as another version of this code would.

    The facts are `of`, or those of the file with `changes`.
    """
    with safe_open(path, framework="pt") as file:
        held = {name: file.get_tensor(name) for name in file.offset_keys()}
        own = json.loads(file.metadata()["facts"]) | changes
    if tensors is not None:
        held = {name: tensor for name, tensor in {**held, **tensors}.items() if tensor is not None}
        own["hash"] = _hash(held)
    save_file(held, path, metadata=sealed(own if of is None else of[0]))


@settings(max_examples=examples(60), deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), header=st.booleans())
def test_one_wrong_bit_anywhere_and_a_file_cut_short_are_noticed(
    sound: Sound, where: float, bit: int, header: bool
) -> None:
    with sound.whole() as whole:
        at = int(where * (8 + int.from_bytes(whole[:8], "little") if header else len(whole)))
        sound.refused(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
        sound.refused(whole[:at])
    sound.read()


def spoil(path: Path) -> None:
    """Flip the last bit of a file, which belongs to a tensor."""
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("no tensors here\n" * 100),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "another's file": lambda path: save_file({"weight": torch.ones(3)}, path, metadata={"format": "pt"}),
    "an older trainer": lambda path: resealed(path, trainer_version=2),
    "another format": lambda path: resealed(path, format=checkpoints.FORMAT + 1),
    "another torch": lambda path: resealed(path, how={"torch": "1.0"}),
    "another layout": lambda path: resealed(path, layout=[]),
}
ENDS: dict[str, Callable[[Path], object]] = {
    "a tensor's bit": spoil,
    "another torch": DAMAGES["another torch"],
    "no facts": lambda path: resealed(path, [{"format": 2}]),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damage_is_read(sound: Sound, damage: str) -> None:
    with sound.whole():
        DAMAGES[damage](sound.path)
        with pytest.raises(BadCheckpoint):
            sound.read()


@pytest.mark.parametrize("damage", ENDS)
def test_the_training_starts_over_and_says_why(
    setting: Setting, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = always(tmp_path)
    run(stack_of(setting), spec, until=CUT)
    (found,) = Checkpoints(tmp_path).usable()
    ENDS[damage](tmp_path / found.name)
    with caplog.at_level(logging.WARNING):
        steps, _, results = run(stack_of(setting), spec)
    assert steps == list(range(setting.steps))
    assert facts(results) == undisturbed(setting)
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
    assert facts(results) == undisturbed(setting)[:1]


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
    assert facts(results) == undisturbed(setting)
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


ODD: list[Any] = [
    *(None, True, False, -1, 0, 1, 3.5, float("nan"), float("inf"), -float("inf"), 10**30, 2**63, -(10**400)),
    *("", "x", "x" * 10**5, [], {}, [None], [[]], [{}], ["trial 0", "trial 0"], ["trial 0", 1], [0, 0], [-1], [5]),
    *([True], [1.0], {"a": []}, [["m", 0, None, [0]]], [["m", 0, None, ["0"]]], [["m", [], None, []]], [[1, 2, 3, 4]]),
]
DRIVERS = ("format", "trainer_version", "trials", "step")  # facts that a driver reads; the worker reads the others, too
FREE = ("trial_steps", "wall_s", "resumes")  # nothing contradicts other numbers under these


@pytest.mark.parametrize("name", [*DRIVERS, *FREE, "how", "layout", "slots", "series", "hash"])
def test_every_fact_may_be_odd_or_missing(sound: Sound, name: str) -> None:
    with sound.whole():
        for odd in ODD:
            if odd != sound.facts[name]:
                resealed(sound.path, **{name: odd})
                is_number = isinstance(odd, int | float) and not isinstance(odd, bool)
                sound.passed_over(may_be_used=name in FREE and is_number)
        resealed(sound.path, [{key: fact for key, fact in sound.facts.items() if key != name}])
        sound.passed_over()
        assert len(Checkpoints(sound.folder).usable()) == (0 if name in DRIVERS else 1)
    sound.read()


def test_facts_that_are_none_and_trials_of_several_shapes_make_no_stack(sound: Sound, setting: Setting) -> None:
    for none in (None, [], 1, "x", [["trials", []]], {}, {"format": 2}):
        with sound.whole():
            resealed(sound.path, [none])
            sound.passed_over()
            assert Checkpoints(sound.folder).usable() == []
    others = [*sound.trials, replace(trial(setting, WIDE), id="wide")]
    with sound.whole():
        resealed(sound.path, trials=[member.id for member in others])
        assert [len(stack.trials) for stack in Checkpoints(sound.folder).resumable(sound.trials)[0]] == [2]
        assert Checkpoints(sound.folder).resumable(others) == ([], others)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_facts_with_anything_anywhere(sound: Sound, data: st.DataObject) -> None:
    forged: Any = json.loads(json.dumps(sound.facts))
    place, key = forged, data.draw(st.sampled_from(sorted(forged)))
    while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
        place = place[key]
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    place[key] = data.draw(JSON)
    with sound.whole():
        resealed(sound.path, [forged])
        sound.passed_over(may_be_used=True)


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_the_header_of_the_file_with_anything_anywhere(sound: Sound, data: st.DataObject) -> None:
    size = int.from_bytes(sound.content[:8], "little")
    header: Any = json.loads(sound.content[8 : 8 + size])
    name = data.draw(st.sampled_from(sorted(header)))
    if data.draw(st.booleans()):
        header[name] = data.draw(JSON)
    elif name != "__metadata__":
        field = data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
        odd = st.sampled_from([[-8, 0], [0, 2**63], [8, 0], [0, 0], [-1], [2**40, 2**40], "F64", "I8", [1.5], []])
        header[name][field] = data.draw(odd | JSON)
    text = json.dumps(header).encode()
    length = data.draw(st.sampled_from([len(text), 0, 2**63, 2**25, len(text) - 1, len(text) + 9]))
    with sound.whole() as whole:
        sound.path.write_bytes(length.to_bytes(8, "little") + text + whole[8 + size :])
        sound.passed_over(may_be_used=True)


@pytest.mark.parametrize(
    "name",
    ["parameters", "moments.0", "powers", "alive", "ended", "limit", "step", "router_bias", "losses", "series.0"],
)
def test_a_tensor_that_does_not_fit_its_facts(sound: Sound, name: str) -> None:
    with safe_open(sound.path, framework="pt") as file:
        old = file.get_tensor(name)
    changed = [old[..., :-1].contiguous(), torch.cat([old, old]), old.to(torch.int8), None]
    for new in [*changed, old + 1] if name == "step" else changed:
        with sound.whole():
            resealed(sound.path, tensors={name: new})
            with pytest.raises(BadCheckpoint):
                sound.read()
