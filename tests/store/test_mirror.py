"""The mirror on a real S3 server: what is pushed is there, wherever a push is cut, and no old mirror hides it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from s3_server import Server
from store_rows import SPEC, abandon, num_points, planted_pairs, stored

from hpxfer.errors import HpxferError
from hpxfer.storage.remote import Remote
from hpxfer.store import Store
from hpxfer.store.location import RemoteLocation, location_at, open_location

Names = Callable[[str], list[str]]


class Killed(BaseException):
    """The process ends here."""


def opened(root: str) -> RemoteLocation:
    location = open_location(root, "small")
    assert isinstance(location, RemoteLocation)
    return location


def _kill(*args: object) -> None:
    raise Killed


def mirrors(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("run-*"))


def test_what_is_pushed_is_there_for_the_next(s3: str, s3_names: Names, tmp_path: Path) -> None:
    pairs = planted_pairs()
    location = opened(s3)
    assert stored(location.folder) == {}
    location.begin()
    store = Store.open(location.folder, write=True)
    store.save_sweep(SPEC, "0123456789abcdef")
    for pair in pairs[:3]:
        store.append([pair])
        location.push()
    assert s3_names("small") == [
        *(f"{kind}-00000{number}.parquet" for kind in ("curves",) for number in (1, 2, 3)),
        "sweep.yaml",
        *(f"trials-00000{number}.parquet" for number in (1, 2, 3)),
    ]
    other = location_at(f"{s3}/small/")
    assert set(stored(other.folder)) == {trial.id for trial, _ in pairs[:3]}
    store.compact()
    location.push()
    assert s3_names("small") == ["curves.parquet", "sweep.yaml", "trials.parquet"]
    other.refresh()
    assert set(stored(other.folder)) == {trial.id for trial, _ in pairs[:3]}
    assert num_points(other.folder) == num_points(location.folder) > 0
    location.close()
    other.close()
    assert mirrors(tmp_path) == []


def test_a_push_that_has_nothing_new_asks_for_nothing(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    location = opened(s3)
    Store.open(location.folder, write=True).append(planted_pairs()[:1])
    location.push()
    asked: list[str] = []
    monkeypatch.setattr(Remote, "put", lambda self, source, name, replace: asked.append(name))
    location.push()
    assert asked == []


def number_of_steps(s3: str, monkeypatch: pytest.MonkeyPatch, stop: int | None) -> tuple[int, RemoteLocation]:
    """Store, merge and store again, and push each time; end like a killed process before step `stop` in the storage."""
    steps = 0
    plain = {name: getattr(Remote, name) for name in ("put", "delete")}

    def counted(name: str) -> Any:
        def step(*args: Any, **kwargs: Any) -> None:
            nonlocal steps
            if steps == stop:
                raise Killed
            steps += 1
            plain[name](*args, **kwargs)

        return step

    location = opened(s3)
    location.begin()
    pairs = planted_pairs()
    store = Store.open(location.folder, write=True)
    store.save_sweep(SPEC, "0123456789abcdef")
    with monkeypatch.context() as patch:
        for name in plain:
            patch.setattr(Remote, name, counted(name))
        try:
            for pair in pairs[:2]:
                store.append([pair])
                location.push()
            store.compact()
            location.push()
            store.append([pairs[2]])
            store.compact()
            location.push()
        except Killed:
            pass
    return steps, location


@pytest.mark.slow
@pytest.mark.parametrize("server", ["s3", "memory"])
def test_a_kill_before_any_step_of_a_push_loses_nothing(
    s3: str, server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    above = s3 if server == "s3" else f"memory://{tmp_path.name}"
    total, location = number_of_steps(f"{above}/whole", monkeypatch, None)
    want, points = stored(location.folder), num_points(location.folder)
    assert len(want) == 3
    assert total >= 12
    for stop in range(total) if server == "memory" else (3, total - 3):
        root = f"{above}/{stop}"
        _, killed = number_of_steps(root, monkeypatch, stop)
        had = stored(killed.folder)
        # Elsewhere, what had come home is read, each trial once and whole.
        far = location_at(f"{root}/small")
        assert stored(far.folder).items() <= had.items()
        assert [
            problem for problem in Store.open(far.folder, write=False).problems if "has no trials file" not in problem
        ] == []
        # On this machine the next run pushes the rest.
        abandon(killed)
        following = opened(root)
        following.begin()
        assert stored(following.folder) == had
        assert Store.open(following.folder, write=False).problems == []
        assert not killed.folder.parent.exists()
        assert stored(location_at(f"{root}/small").folder) == had
        store = Store.open(following.folder, write=True)
        store.append([pair for pair in planted_pairs()[:3] if pair[0].id not in had])
        store.compact()
        following.push()
        again = location_at(f"{root}/small").folder
        assert stored(again) == want
        assert num_points(again) == points


def test_a_mirror_that_lives_is_left_alone(s3: str) -> None:
    alive, following = opened(s3), opened(s3)
    Store.open(alive.folder, write=True).append(planted_pairs()[:1])
    following.begin()
    assert stored(following.folder) == {}
    alive.push()
    following.refresh()
    assert len(stored(following.folder)) == 1


def test_two_that_write_the_same_part_overwrite_nothing(s3: str) -> None:
    first, second = opened(s3), opened(s3)
    pairs = planted_pairs()
    Store.open(first.folder, write=True).append(pairs[:1])
    Store.open(second.folder, write=True).append(pairs[1:2])
    first.push()
    with pytest.raises(HpxferError, match="written by another run") as error:
        second.push()
    assert str(second.folder.parent) in str(error.value)
    assert set(stored(location_at(f"{s3}/small").folder)) == {pairs[0][0].id}
    abandon(second)
    following = opened(s3)
    following.begin()
    assert set(stored(location_at(f"{s3}/small").folder)) == {trial.id for trial, _ in pairs[:2]}


@pytest.mark.parametrize("lost_at", [2, 3])
def test_a_driver_that_loses_its_lease_within_a_push_writes_no_further_file(
    lost_at: int, s3: str, s3_names: Names
) -> None:
    """The first question is asked before the push, and one before each file."""
    location, asked = opened(s3), []

    def check() -> None:
        asked.append(s3_names("small"))
        if len(asked) == lost_at:
            raise HpxferError("the lease was taken over")

    Store.open(location.folder, write=True).append(planted_pairs()[:1])
    with pytest.raises(HpxferError, match="taken over"):
        location.push(check)
    assert s3_names("small") == asked[-1] == ["curves-000001.parquet"][: lost_at - 2]
    abandon(location)
    leftover = Remote(location._remote.uri)
    leftover.write("trials.parquet.0123abcd.tmp", b"x")
    with pytest.raises(HpxferError, match="taken over"):
        opened(s3).begin(_lost)
    assert "trials.parquet.0123abcd.tmp" in s3_names("small")


def _lost() -> None:
    raise HpxferError("the lease was taken over")


def test_a_reader_is_not_misled_by_files_that_are_merged_meanwhile(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = opened(s3)
    store = Store.open(writer.folder, write=True)
    for pair in planted_pairs()[:2]:
        store.append([pair])
    writer.push()
    fetch, merged = Remote.fetch, []

    def overtaken(self: Remote, name: str, target: Path) -> None:
        if not merged:
            merged.append(name)
            store.compact()
            writer.push()
        fetch(self, name, target)

    monkeypatch.setattr(Remote, "fetch", overtaken)
    assert len(stored(location_at(f"{s3}/small").folder)) == 2


@pytest.mark.slow
def test_a_network_that_is_down_is_waited_for(s3: str, s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    location = opened(s3)
    Store.open(location.folder, write=True).append(planted_pairs()[:1])
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        s3_server.start()

    monkeypatch.setattr("hpxfer.storage.remote.time.sleep", pause)
    s3_server.stop()
    location.push(lambda: None)
    assert pauses == [1.0]
    assert len(stored(location_at(f"{s3}/small").folder)) == 1


def test_what_waiting_does_not_mend_is_said_at_once(s3: str, s3_server: Server) -> None:
    location = opened(s3)
    Store.open(location.folder, write=True).append(planted_pairs()[:1])
    with s3_server.forbidding(), pytest.raises(HpxferError, match="ACCESS_DENIED") as error:
        location.push()
    assert str(location.folder.parent) in str(error.value)
    location.close()
    assert location.folder.exists()


def test_half_written_files_go_and_others_stay(s3: str, s3_names: Names) -> None:
    remote = Remote((open_location(s3, "small"))._remote.uri)  # type: ignore[union-attr]
    for name in ("trials.parquet.0123abcd.tmp", "notes.txt"):
        remote.write(name, b"x")
    location = opened(s3)
    location.begin()
    assert s3_names("small") == ["notes.txt"]
    assert not (location.folder / "notes.txt").exists()


def test_a_file_is_replaced_only_by_a_whole_one(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = opened(s3)._remote
    (tmp_path / "new").write_bytes(b"new" * 1000)
    remote.write("trials.parquet", b"old")
    with monkeypatch.context() as patch:
        patch.setattr("hpxfer.storage.remote.Remote._move", _kill)
        with pytest.raises(Killed):
            remote.put(tmp_path / "new", "trials.parquet", replace=True)
    assert remote.read("trials.parquet") == b"old"
    remote.put(tmp_path / "new", "trials.parquet", replace=True)
    assert remote.read("trials.parquet") == b"new" * 1000
    remote_names = set(remote.list())
    opened(s3).begin()
    assert len(remote_names) == 2
    assert set(remote.list()) == {"trials.parquet"}
