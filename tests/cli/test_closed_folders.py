"""A folder that is closed to the user: each command says in one sentence which one, and what must be."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import hpxfer
from corpus import tokenizer_file
from permissions import permissions_count

from hpxfer.host.files import path_problem, write_files

# Of each command that reads a folder; {} is the folder, {root} the one above it.
COMMANDS = [
    "report {} --format text",
    "recipe {}",
    "predict {} --target shape.json",
    "watch {} --once",
    "weights {} --best --out w",
    "list {}",
    "limit --against {}",
    "plan {sweep} --results {root}",
    "run {sweep} --results {root}",
    "plan {sweep} --reuse {}",
    "data info tokens:{}",
    "data info text:{}/*.txt",
    "data prepare {} --tokenizer tokenizer.json --out made",
]
SMOKE = Path(__file__).parents[2] / "sweeps" / "smoke.yaml"


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide a folder of results in a folder of their own."""
    folder = tmp_path / "closed" / "smoke"
    folder.mkdir(parents=True)
    (folder / "sweep.yaml").write_text("name: smoke\n")
    (folder / "a.jsonl").write_text('{"text": "hello"}\n')
    (tmp_path / "shape.json").write_text('{"width": 64, "depth": 2, "dense_width": 64}')
    monkeypatch.chdir(tmp_path)
    yield folder
    for path in (folder.parent, folder):
        path.chmod(0o755)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("closed", "mode"), [(".", 0), ("..", 0), (".", 0o444)])
def test_a_closed_folder_is_named(
    results: Path, capsys: pytest.CaptureFixture[str], command: str, closed: str, mode: int
) -> None:
    if "prepare" in command:
        tokenizer_file(Path("tokenizer.json"))
    folder = Path(os.path.normpath(results / closed))
    folder.chmod(mode)
    words = command.format(results, root=results.parent, sweep=SMOKE).split()
    with permissions_count():
        code, _, err = hpxfer(capsys, *words)
    assert code == 2
    assert err == (
        f"hpxfer: {folder}: must be open to this user, got 'Permission denied'; change its permissions, or name "
        "another path\n"
    )


def test_what_a_disk_refuses_is_named_by_the_path_that_was_to_be_written(tmp_path: Path) -> None:
    """The system names a temporary file, or none."""

    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left") as caught:
        write_files({tmp_path / "recipe.yaml": full})
    assert path_problem(caught.value) == (
        f"{tmp_path / 'recipe.yaml'}: must be on a disk with room, got 'No space left on device'; make room, or name "
        "another path"
    )
    assert path_problem(OSError("no more")) is None
    assert path_problem(BrokenPipeError(errno.EPIPE, "Broken pipe")) is None
