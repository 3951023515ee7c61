"""The folder that a user names for the files of a command: made and written, or an error that says why not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from hpxfer.errors import HpxferError
from hpxfer.host.files import reason, write_files


def make_folder(folder: Path, what: str, option: str = "--output") -> None:
    """Make the folder of a thing, such as "check". Raise HpxferError as `write_folder` does if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(folder, what, option, error) from None


def write_folder(
    writers: Mapping[Path, Callable[[IO[bytes]], object]], folder: Path, what: str, option: str = "--output"
) -> list[Path]:
    """Write the files of a thing below its folder, and return their paths. Raise HpxferError if one cannot be written.

    The message names the thing and the option by which the user chooses the folder.
    """
    try:
        for parent in {path.parent for path in writers}:
            parent.mkdir(parents=True, exist_ok=True)
        write_files(writers)
    except OSError as error:
        raise _not_written(folder, what, option, error) from None
    return list(writers)


def text_writer(text: str) -> Callable[[IO[bytes]], object]:
    """Return what writes a text and a line end."""
    return lambda file: file.write(f"{text}\n".encode())


def _not_written(folder: Path, what: str, option: str, error: OSError) -> HpxferError:
    where = error.filename or folder
    return HpxferError(f"{where}: the {what} cannot be written: {reason(error)}; choose another folder with {option}")
