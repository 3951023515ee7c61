"""Folders that users name for the files of a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpxfer.errors import HpxferError
from hpxfer.host.output_folder import make_folder, text_writer, write_folder


def test_files_come_below_their_folder_in_the_order_given(tmp_path: Path) -> None:
    named = [tmp_path / "out" / "b.txt", tmp_path / "out" / "deeper" / "a.txt"]
    written = write_folder({path: text_writer(path.name) for path in named}, tmp_path / "out", "check")
    assert written == named
    assert [path.read_text() for path in written] == ["b.txt\n", "a.txt\n"]


def test_a_folder_that_is_a_file_is_said_before_and_after_the_work(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    message = rf"{file}: the limit cannot be written: a file is in its place; choose another folder with --to"
    with pytest.raises(HpxferError, match=message):
        make_folder(file, "limit", "--to")
    with pytest.raises(HpxferError, match=message):
        write_folder({file / "a.txt": text_writer("new")}, file, "limit", "--to")
    assert file.read_text() == "mine"


def test_a_file_that_cannot_be_written_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mine")

    def refuse(file: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(HpxferError, match="the check cannot be written: No space left on device; choose another"):
        write_folder({tmp_path / "a.txt": text_writer("new"), tmp_path / "b.txt": refuse}, tmp_path, "check")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.txt", "mine")]
