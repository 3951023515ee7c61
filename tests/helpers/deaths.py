"""What a process that dies between any two steps on the disk leaves there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# All that changes what is under a name. What is under a temporary name need not be whole.
STEPS = ("replace", "unlink", "fsync", "mkdir")


class Death(BaseException):
    """Not an Exception: nothing that tidies up after an error may count on being run."""


@contextmanager
def before_each_step(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` before each step on the disk while entered."""

    def preceded(step: Callable[..., Any]) -> Callable[..., Any]:
        def after_act(*args: Any, **more: Any) -> Any:
            act()
            return step(*args, **more)

        return after_act

    with monkeypatch.context() as patch:
        for name in STEPS:
            patch.setattr(os, name, preceded(getattr(os, name)))
        yield


def die_after(
    num_steps: int, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], death: BaseException | None = None
) -> bool:
    """Return whether `act` died: after so many steps on the disk, all further ones raise Death.

    Another `death` is raised once, as by a disk that is full for a moment.
    """
    left = num_steps

    def step() -> None:
        nonlocal left
        left -= 1
        if death is not None and left == -1:
            raise death
        if death is None and left < 0:
            raise Death

    with before_each_step(monkeypatch, step):
        try:
            act()
        except Death:
            return True
    return left < 0


def left_by_death(folder: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[dict[str, bytes]]:
    """Return what the folder holds before each step of `act`, as `contents` does: what a kill there would leave."""
    found: list[dict[str, bytes]] = []
    with before_each_step(monkeypatch, lambda: found.append(contents(folder))):
        act()
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """Return path -> bytes of all files below a folder, and nothing under the paths of folders, which end in /."""
    return {
        f"{path.relative_to(folder)}{'/' if path.is_dir() else ''}": b"" if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def refill(folder: Path, found: dict[str, bytes]) -> None:
    """Make a new folder hold what `contents` found."""
    folder.mkdir()
    for name, content in found.items():
        if name.endswith("/"):
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)
