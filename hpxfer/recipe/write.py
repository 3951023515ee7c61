"""Write: a recipe file that is whole or not there, and that takes the place of nothing but a recipe."""

from __future__ import annotations

from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.host.files import write_files
from hpxfer.recipe.file import is_recipe
from hpxfer.recipe.recipe import Recipe
from hpxfer.spec.yaml_file import read_yaml


def write_recipe(recipe: Recipe, path: str | Path) -> None:
    """Write the recipe, in the place of an older recipe if one is there.

    Raises HpxferError, and changes nothing, if another file is there or the disk refuses.
    """
    place, content = Path(path), recipe.dump().encode()
    if place.exists() and not _holds_recipe(place):
        raise HpxferError(f"{place}: must be a new file or an older recipe, got another file; choose another path")
    try:
        write_files({place: lambda file: file.write(content)})
    except OSError as error:
        raise HpxferError(f"{place}: cannot be written: {error.strerror}; choose another path") from None


def _holds_recipe(path: Path) -> bool:
    try:
        return is_recipe(read_yaml(path).data)
    except HpxferError:
        return False
