"""Write a recipe file. It appears whole or not at all, and it replaces no file but an older recipe."""

from __future__ import annotations

from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.host import write_files
from hpxfer.recipe.file import is_recipe
from hpxfer.recipe.recipe import Recipe
from hpxfer.spec import read_yaml


def write_recipe(recipe: Recipe, path: str | Path) -> None:
    """Write the recipe to a new file, or over an older recipe.

    Raises HpxferError, and changes nothing, if another file is there or the file cannot be written.
    """
    target, content = Path(path), recipe.dump().encode()
    if target.is_dir():
        raise HpxferError(f"{target}: must be a new file or an older recipe, got a folder; choose a file in it")
    if target.exists() and not _holds_recipe(target):
        raise HpxferError(
            f"{target}: must be a new file or an older recipe, got another file, or a damaged one; choose another "
            "path, or remove it"
        )
    try:
        write_files({target: lambda file: file.write(content)})
    except OSError as error:
        raise HpxferError(f"{target}: cannot be written: {error.strerror}; choose another path") from None


def _holds_recipe(path: Path) -> bool:
    try:
        return is_recipe(read_yaml(path).data)
    except HpxferError:
        return False
