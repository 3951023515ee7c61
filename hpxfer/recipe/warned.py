"""Warned: one warning of a kind per model, however often it is used."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from hpxfer.recipe.wrappers import unwrapped

if TYPE_CHECKING:
    import torch

# Model, without its wrappers -> the texts of its warnings. It ends with the model.
_WARNED: WeakKeyDictionary[torch.nn.Module, set[str]] = WeakKeyDictionary()


def warn_once(model: torch.nn.Module, text: str | None, kind: type[UserWarning], *, stacklevel: int = 3) -> None:
    """Warn of the model, unless `text` is None or this model got the same warning before."""
    inner = unwrapped(model)
    if text is not None and text not in _WARNED.get(inner, ()):
        warnings.warn(text, kind, stacklevel=stacklevel)
        _WARNED.setdefault(inner, set()).add(text)
