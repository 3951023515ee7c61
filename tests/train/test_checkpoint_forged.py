"""A checkpoint with a forged header is passed over: it ends neither the driver nor the training, and trains nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupted import always, resealed, run
from safetensors import safe_open
from safetensors.torch import save_file
from tiny_trials import BASE, numbers, trial

from hpxfer.train.checkpoint import read
from hpxfer.train.checkpoints import BadCheckpoint, Checkpoints, sealed
from hpxfer.train.device import CPU
from hpxfer.trial import Setting, Trial
from hpxfer.trial.stack import Stack

CUT = 4
WIDE = replace(BASE, depth=1, num_experts=2, width=32, expert_width=32)


def stack_of(setting: Setting) -> list[Trial]:
    shape = replace(BASE, depth=1, num_experts=2)
    return [replace(trial(setting, shape, seed=seed), id=f"forged {seed}") for seed in range(2)]


class Sound:
    """A checkpoint in a folder of its own, its facts and its bytes."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self.folder, self.trials = folder, stack_of(setting)
        run(self.trials, always(folder), until=CUT)
        (found,) = Checkpoints(folder).usable()
        self.path, self.facts = folder / found.name, dict(found.facts)
        self.content = self.path.read_bytes()


@pytest.fixture(scope="module")
def sound(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return Sound(setting, tmp_path_factory.mktemp("forged") / "checkpoints")


ODD: list[Any] = [
    *(None, True, False, -1, 0, 1, 3.5, float("nan"), float("inf"), -float("inf"), 10**30, 2**63, -(10**400)),
    *("", "x", "x" * 10**6, [], {}, [None], [[]], [{}], ["forged 0", "forged 0"], ["forged 0", 1], [0, 0], [-1], [5]),
    *([True], [1.0], {"a": []}, [["m", 0, None, [0]]], [["m", 0, None, ["0"]]], [["m", [], None, []]], [[1, 2, 3, 4]]),
]


def check_passed_over(sound: Sound, *, may_be_used: bool = False) -> None:
    """Check that neither a driver nor a worker fails, and that a worker takes no wrong numbers from the file."""
    checkpoints = Checkpoints(sound.folder)
    checkpoints.resumable(sound.trials)
    checkpoints.clear([])
    why = None
    try:
        read(sound.path, Stack(trials=tuple(sound.trials)), CPU)
    except BadCheckpoint as error:
        why = str(error)
    assert may_be_used if why is None else len(why) < 500


# Nothing contradicts other numbers under `resumes`, `trial_steps` and `wall_s`.
@pytest.mark.parametrize(
    "name",
    [
        *("format", "trainer_version", "how", "layout", "trials", "slots", "step", "trial_steps", "wall_s", "resumes"),
        *("series", "hash"),
    ],
)
def test_every_fact_may_be_odd_or_missing(sound: Sound, name: str) -> None:
    free = name in ("trial_steps", "wall_s", "resumes")
    for odd in ODD:
        if odd == sound.facts[name]:
            continue
        resealed(sound.path, **{name: odd})
        check_passed_over(sound, may_be_used=free and not isinstance(odd, bool) and isinstance(odd, int | float))
    with safe_open(sound.path, framework="pt") as file:
        held = {key: file.get_tensor(key) for key in file.offset_keys()}
    save_file(held, sound.path, metadata=sealed({key: fact for key, fact in sound.facts.items() if key != name}))
    check_passed_over(sound)
    drivers = name in ("format", "trainer_version", "trials", "step")
    assert len(Checkpoints(sound.folder).usable()) == (0 if drivers else 1)  # the worker passes over the others
    sound.path.write_bytes(sound.content)
    read(sound.path, Stack(trials=tuple(sound.trials)), CPU)


@pytest.mark.parametrize("facts", [None, [], 1, "x", [["trials", []]], {}, {"format": 2}])
def test_facts_that_are_none(sound: Sound, facts: Any) -> None:
    with safe_open(sound.path, framework="pt") as file:
        held = {key: file.get_tensor(key) for key in file.offset_keys()}
    save_file(held, sound.path, metadata=sealed(facts))
    check_passed_over(sound)
    assert Checkpoints(sound.folder).usable() == []
    sound.path.write_bytes(sound.content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_facts_with_anything_anywhere(sound: Sound, data: st.DataObject) -> None:
    facts: Any = json.loads(json.dumps(sound.facts))
    place, key = facts, data.draw(st.sampled_from(sorted(facts)))
    while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
        place = place[key]
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    place[key] = data.draw(JSON)
    resealed(sound.path, **facts)
    check_passed_over(sound, may_be_used=True)
    sound.path.write_bytes(sound.content)


@settings(max_examples=150, deadline=None)
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
    sound.path.write_bytes(length.to_bytes(8, "little") + text + sound.content[8 + size :])
    check_passed_over(sound, may_be_used=True)
    sound.path.write_bytes(sound.content)


def reshaped(path: Path, name: str, tensor: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    """Write the file again with another tensor, or without it, under hashes that fit."""
    from hpxfer.train.checkpoint import _hash

    with safe_open(path, framework="pt") as file:
        held = {key: file.get_tensor(key) for key in file.offset_keys()}
        facts = json.loads(file.metadata()["facts"])
    new = tensor(held.pop(name))
    held |= {} if new is None else {name: new.contiguous()}
    save_file(held, path, metadata=sealed(facts | {"hash": _hash(held)}))


@pytest.mark.parametrize(
    "name",
    ["parameters", "moments.0", "powers", "alive", "ended", "limit", "step", "router_bias", "losses", "series.0"],
)
@pytest.mark.parametrize(
    "tensor",
    [lambda old: None, lambda old: old[..., :-1], lambda old: torch.cat([old, old]), lambda old: old.to(torch.int8)],
)
def test_a_tensor_that_does_not_fit_its_facts(
    sound: Sound, name: str, tensor: Callable[[torch.Tensor], torch.Tensor | None]
) -> None:
    reshaped(sound.path, name, tensor)
    with pytest.raises(BadCheckpoint):
        read(sound.path, Stack(trials=tuple(sound.trials)), CPU)
    sound.path.write_bytes(sound.content)


def test_a_step_that_the_tensors_do_not_have(sound: Sound) -> None:
    reshaped(sound.path, "step", lambda old: old + 1)
    with pytest.raises(BadCheckpoint, match="not those of its facts"):
        read(sound.path, Stack(trials=tuple(sound.trials)), CPU)
    sound.path.write_bytes(sound.content)


def test_trials_of_several_shapes_share_no_stack(setting: Setting, sound: Sound) -> None:
    others = [*sound.trials, replace(trial(setting, WIDE), id="forged wide")]
    resealed(sound.path, trials=[member.id for member in others])
    assert [len(stack.trials) for stack in Checkpoints(sound.folder).resumable(sound.trials)[0]] == [2]
    assert Checkpoints(sound.folder).resumable(others) == ([], others)
    sound.path.write_bytes(sound.content)


def test_the_training_starts_over_with_a_warning(
    setting: Setting, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trials = stack_of(setting)
    undisturbed = run(trials, None)[2]
    spec = always(tmp_path)
    run(trials, spec, until=CUT)
    (found,) = Checkpoints(tmp_path).usable()
    with safe_open(tmp_path / found.name, framework="pt") as file:
        held = {key: file.get_tensor(key) for key in file.offset_keys()}
    facts = {key: fact for key, fact in found.facts.items() if key != "trials"}
    save_file(held, tmp_path / found.name, metadata=sealed(facts))
    with caplog.at_level(logging.WARNING):
        assert Checkpoints(tmp_path).usable() == []
        steps, _, results = run(trials, spec)
    assert steps == list(range(setting.steps))
    assert [numbers(result) for result in results] == [numbers(result) for result in undisturbed]
    assert any("not used: damaged" in line for line in caplog.messages)
