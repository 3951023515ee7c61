"""The folder of checkpoints: which trials continue together, and what is removed and when."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_trials import SETTING, trial

from hpxfer.train.checkpoints import FORMAT, BadCheckpoint, Checkpoints, CheckpointSpec, name_of, read_facts, sealed
from hpxfer.trial import TRAINER_VERSION, Trial
from hpxfer.trial.stack import Stack

TRIALS = [replace(trial(SETTING, seed=k), id=f"trial {k}") for k in range(8)]


def header(trials: Sequence[Trial], step: int, **changes: object) -> bytes:
    """Return a checkpoint without tensors."""
    facts = {"format": FORMAT, "trainer_version": TRAINER_VERSION, "step": step}
    facts |= {"trials": [member.id for member in trials]}
    content = json.dumps({"__metadata__": sealed(facts | changes)}).encode()
    return struct.pack("<Q", len(content)) + content


def put(folder: Path, trials: Sequence[Trial], step: int, **changes: object) -> Path:
    """Write a checkpoint without tensors under its name."""
    path = folder / name_of(Stack(trials=tuple(trials)))
    path.write_bytes(header(trials, step, **changes))
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def ids(*numbers: int) -> list[str]:
    return [TRIALS[k].id for k in numbers]


def furthest(folder: Checkpoints, trial_ids: Sequence[str]) -> str | None:
    """Return the name of the furthest checkpoint that holds these trials, or None."""
    return next((checkpoint.name for checkpoint in folder.candidates(trial_ids)), None)


def test_a_run_starts_with_a_marker_of_its_own_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results" / "checkpoints"
    first = Checkpoints(Path("results/checkpoints")).start(120.0)
    assert first is not None
    assert (first.folder, first.every_s) == (str(folder), 120.0)  # absolute, whatever the driver was given
    assert first.is_here()
    second = Checkpoints(folder).start(120.0)
    assert second is not None
    assert second.is_here()
    assert not first.is_here()  # a worker that outlived its driver writes no more
    put(folder, TRIALS[:2], 5)
    Checkpoints(folder).end(ids(0))
    assert len(names(folder)) == 1  # the next run goes on from it
    assert not second.is_here()
    Checkpoints(folder).end(ids(0, 1))
    assert not folder.exists()
    Checkpoints(folder).end(ids(0, 1))
    assert not CheckpointSpec(str(tmp_path / "none"), 1.0, "drawn").is_here()
    for content in (b"", b"another", b"\xff\xfe"):
        (tmp_path / "driver").write_bytes(content)
        assert not CheckpointSpec(str(tmp_path), 1.0, "drawn").is_here()


def test_the_furthest_that_holds_all_trials_is_found(tmp_path: Path) -> None:
    folder = Checkpoints(tmp_path)
    assert furthest(folder, ids(0)) is None
    assert furthest(Checkpoints(tmp_path / "none"), ids(0)) is None
    four, two, other = put(tmp_path, TRIALS[:4], 10), put(tmp_path, TRIALS[:2], 30), put(tmp_path, TRIALS[4:], 50)
    assert furthest(folder, ids(1)) == furthest(folder, ids(1, 0)) == two.name
    assert furthest(folder, ids(3, 1)) == four.name
    assert furthest(folder, ids(7)) == other.name
    assert furthest(folder, ids(3, 4)) is None
    assert furthest(folder, ["unknown"]) is None


def test_trials_of_a_checkpoint_go_on_together(tmp_path: Path) -> None:
    folder = Checkpoints(tmp_path)
    put(tmp_path, TRIALS[:4], 10)
    put(tmp_path, [TRIALS[1], TRIALS[0]], 30)
    put(tmp_path, TRIALS[5:7], 20)
    stacks, rest = folder.resumable(member for member in TRIALS if member is not TRIALS[3])
    assert [[member.id for member in stack.trials] for stack in stacks] == [ids(1, 0), ids(5, 6), ids(2)]
    assert [member.id for member in rest] == ids(4, 7)
    assert folder.groups([]) == []
    assert Checkpoints(tmp_path / "none").resumable(TRIALS) == ([], TRIALS)


def test_a_whole_stack_keeps_its_id(tmp_path: Path) -> None:
    """Its next checkpoint then replaces this one."""
    path = put(tmp_path, [TRIALS[2], TRIALS[0], TRIALS[5]], 10)
    (stack,), _ = Checkpoints(tmp_path).resumable(TRIALS)
    assert name_of(stack) == path.name


subsets = st.sets(st.integers(0, 7), min_size=1).map(sorted)


@given(held=st.lists(st.tuples(subsets, st.integers(0, 9)), max_size=5), asked=st.sets(st.integers(0, 7)))
def test_every_trial_is_in_one_group_at_most_and_each_group_has_a_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, held: list[tuple[list[int], int]], asked: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("groups")
    for numbers, step in held:
        put(folder, [TRIALS[k] for k in numbers], step)
    stacks, rest = Checkpoints(folder).resumable([TRIALS[k] for k in asked])
    grouped = [member.id for stack in stacks for member in stack.trials]
    assert sorted([*grouped, *(member.id for member in rest)]) == ids(*sorted(asked))
    assert set(grouped) == {TRIALS[k].id for k in asked if any(k in numbers for numbers, _ in held)}
    for stack in stacks:
        assert furthest(Checkpoints(folder), [trial.id for trial in stack.trials]) is not None


def test_a_checkpoint_goes_when_all_its_trials_are_done(tmp_path: Path) -> None:
    folder = Checkpoints(tmp_path)
    four, two = put(tmp_path, TRIALS[:4], 10), put(tmp_path, TRIALS[:2], 30)
    folder.clear(ids(0, 2, 3))
    assert names(tmp_path) == {four.name, two.name}
    folder.clear(frozenset(ids(0, 1, 2)))
    assert names(tmp_path) == {four.name}
    folder.clear(ids(0, 1, 2, 3, 4))
    assert not tmp_path.exists()  # it held nothing more
    Checkpoints(tmp_path / "none").clear(ids(0))


def test_what_nobody_can_use_goes_and_what_somebody_may_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    usable = put(tmp_path, TRIALS[:1], 5)
    newer = put(tmp_path, TRIALS[:2], 5, format=FORMAT + 1)
    later = put(tmp_path, TRIALS[:3], 5, trainer_version=TRAINER_VERSION + 1)
    older = put(tmp_path, TRIALS[:4], 5, trainer_version=TRAINER_VERSION - 1)
    damaged = put(tmp_path, TRIALS[:5], 5)
    damaged.write_bytes(damaged.read_bytes().replace(b"trial 3", b"trial 7"))
    half = [tmp_path / "0123.safetensors.77.tmp", tmp_path / ".tmpAbCdEf"]
    for path in half:
        path.write_bytes(b"half")
    (tmp_path / "notes.safetensors").write_text("a user's own")
    (tmp_path / ("f" * 32 + ".safetensors")).mkdir()
    assert [found.name for found in Checkpoints(tmp_path).usable()] == [usable.name]
    Checkpoints(tmp_path).start(1.0)
    kept = {usable.name, newer.name, later.name, "notes.safetensors", "f" * 32 + ".safetensors", "driver"}
    assert names(tmp_path) == kept
    said = "\n".join(caplog.messages)
    assert all(path.name in said for path in (newer, later, older, damaged))
    Checkpoints(tmp_path).end([])
    assert names(tmp_path) == kept - {"driver"}


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\x10\0\0\0\0\0\0\0{}", b"\xff" * 40, b"\x02\0\0\0\0\0\0\0[]", b"\x02\0\0\0\0\0\0\0{}"),
        *(struct.pack("<Q", 20) + text for text in (b'{"__metadata__": 3}  ', b'{"__metadata__": {}} ')),
        struct.pack("<Q", 60_000) + b"[" * 60_000,
    ],
    ids=["empty", "short", "huge", "list", "no metadata", "a number", "no facts", "deep"],
)
def test_no_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / ("0" * 32 + ".safetensors")
    path.write_bytes(content)
    with open(path, "rb") as file, pytest.raises(BadCheckpoint, match="damaged, or not a checkpoint of") as found:
        read_facts(file)
    assert found.value.useless
    assert Checkpoints(tmp_path).usable() == []


def test_below_a_uri_it_is_the_same(s3: str, caplog: pytest.LogCaptureFixture) -> None:
    folder = Checkpoints(f"{s3}/sweep/checkpoints")
    assert folder.usable() == []
    spec = folder.start(120.0)
    assert spec is not None
    assert spec.folder == f"{s3}/sweep/checkpoints"
    assert spec.is_here()
    assert not replace(spec, marker="another").is_here()
    name = name_of(Stack(trials=tuple(TRIALS[:2])))
    folder.files.put(name, lambda path: path.write_bytes(header(TRIALS[:2], 7)))
    folder.files.put("left.tmp", lambda path: path.write_bytes(b"half"))
    assert furthest(folder, ids(0)) == name
    folder.clear(ids(0))
    folder.end(ids(0))
    assert set(folder.files.stamps()) == {name}
    folder.end(ids(0, 1))
    assert set(folder.files.stamps()) == set()
    assert not spec.is_here()
    assert caplog.messages == []


def test_a_header_is_read_anew_only_where_its_file_has_changed(tmp_path: Path) -> None:
    folder, opened = Checkpoints(tmp_path), []
    plain = folder.files.open
    with mock.patch.object(folder.files, "open", lambda name: (opened.append(name), plain(name))[1]):
        names = [put(tmp_path, TRIALS[:2], 5).name, put(tmp_path, TRIALS[2:], 5).name]
        for _ in range(3):
            assert len(folder.usable()) == 2
        assert sorted(opened) == sorted(names)
        put(tmp_path, TRIALS[:2], 60)
        assert [member.step for member in folder.usable()] == [60, 5]
        assert len(opened) == 3


@pytest.mark.parametrize("where", ["unknown-scheme://bucket/checkpoints", "a file"])
def test_storage_that_does_not_answer_stops_no_run(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a file").write_text("no folder")
    folder = Checkpoints(where if ":" in where else tmp_path / where)
    assert folder.start(1.0) is None
    assert folder.resumable(TRIALS[:1]) == ([], TRIALS[:1])
    folder.end(ids(0))
    assert ["training without checkpoints" in line for line in caplog.messages][:1] == [True]
