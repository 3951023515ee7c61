"""Export targets: trainers that take a recipe. To add one, write a module with its row and add one line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpxfer.export.names import Named
from hpxfer.export.plan import Lack, Pairs, Plan
from hpxfer.recipe import Recipe
from hpxfer.registry import Registry
from hpxfer.scaling.shape import Shape


@dataclass(frozen=True, kw_only=True)
class ExportTarget:
    """A target of `hpxfer recipe export`. A new one is a module with its row and one line in `hpxfer.export.targets`.

    `files` returns name of a file -> its text, for what the target holds, and lists the lacks in it. `hpxfer.json` is
    written for every target. No function imports the trainer.
    """

    name: str
    doc: str  # what it writes, in one sentence
    optimizers: tuple[str, ...] = ("adamw",)  # that it can build
    roles: Callable[[Recipe], Pairs] = lambda recipe: ()  # of its own parameter names, before common ones
    names: Callable[[Recipe, Shape], Sequence[Named]] | None = None  # the trainer's own, for a model of this shape
    needs_names: bool = True  # whether it cannot do without the names of the parameters
    lacks: Callable[[Plan], Sequence[Lack]] = lambda plan: ()
    files: Callable[[Plan, Sequence[Lack]], dict[str, str]]


EXPORT_TARGETS: Registry[ExportTarget] = Registry(
    "export target",
    {
        "megatron": "hpxfer.export.targets.megatron:MEGATRON",
        "torchtitan": "hpxfer.export.targets.torchtitan:TORCHTITAN",
        "olmo-core": "hpxfer.export.targets.olmo_core:OLMO_CORE",
        "transformers": "hpxfer.export.targets.transformers:TRANSFORMERS",
        "torch": "hpxfer.export.targets.torch:TORCH",
        "json": "hpxfer.export.targets.json:JSON",
    },
)


def register_export_target(target: ExportTarget) -> ExportTarget:
    """Register a target of your own under its name, and return it. Raise HpxferError if the name is taken."""
    return EXPORT_TARGETS.register(target)
