"""One torch thread, and recipes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from recipe_data import MakeRecipe, data

from hpxfer.recipe import Recipe
from hpxfer.spec.yaml_file import write_yaml


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def recipe() -> MakeRecipe:
    """Return a function that makes a recipe: `decay`, `final_fraction` and what `recipe_data.data` changes."""

    def make(decay: str = "cosine", final_fraction: float = 0.25, **changes: Any) -> Recipe:
        length = {"steps": 50} if decay == "wsd" else None
        schedule = {"decay": decay, "warmup": 20, "decay_length": length, "final_fraction": final_fraction}
        if decay == "constant":
            schedule["final_fraction"] = 0.0
        return Recipe.parse(write_yaml(data(**{"model__ffn": "swiglu", "training__schedule": schedule, **changes})))

    return make
