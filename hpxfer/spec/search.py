"""Search: how a sweep chooses the HPs that it tries, and the budget that every arm gets.

An arm is a parameterization at a shape. Tables that agree at the base share one arm there.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from hpxfer.registry import registry
from hpxfer.spec.fields import Count, Registered, Section, into

S = TypeVar("S", bound=Section)


class SearchSpec(Section):
    """How the sweep chooses the HPs that it tries. An arm is a parameterization at a shape.

    A bare name is short for `{kind: NAME}`. Each kind reads its own keys and refuses the others.
    """

    model_config = ConfigDict(extra="allow")  # the keys of the kind, which its row in the registry declares

    kind: Annotated[str, Registered("search")] = "grid"
    """The search. `grid` trains every cell of the grid. `docs/search.md` describes the others."""
    budget: Count | None = None
    """The most trials per arm, counted over all seeds. Every arm gets the same budget."""
    at: Literal["base", "all"] | None = None
    """The shapes that are searched. The default is `base` for coordinate and staged-grid, and `all` for the others."""

    @property
    def row(self) -> Any:
        """The row of the kind: a `hpxfer.search.kinds.SearchKind`."""
        return registry("search").get(self.kind)

    @property
    def given(self) -> dict[str, Any]:
        """The keys of the kind as the file spells them."""
        return dict(self.model_extra or {})

    def settings(self, model: type[S]) -> S:
        """Return the keys of the kind, with defaults for what the file leaves out."""
        return model.model_validate({key: value for key, value in self.given.items() if key in model.model_fields})

    @property
    def where(self) -> Literal["base", "all"]:
        """The shapes that are searched at."""
        if self.at is not None:
            return self.at
        return self.row.where if self.kind in registry("search") else "all"

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema with the keys of all kinds."""
        schema = handler.resolve_ref_schema(handler(core))
        for kind in registry("search").rows():
            settings = handler.resolve_ref_schema(handler(kind.settings.__pydantic_core_schema__))
            for key, entry in settings.get("properties", {}).items():
                schema["properties"].setdefault(key, entry)
        schema["additionalProperties"] = False
        return schema


class AshaSpec(Section):
    """Asynchronous successive halving: at each rung only the best 1/reduction_factor of the trials go on."""

    grace_steps: Count
    """The steps of a trial before it may be stopped. They must be fewer than the steps of the run."""
    reduction_factor: Annotated[float, Field(gt=1, le=1000)] = 4.0
    """The inverse of the fraction of trials that goes on at each rung."""


class EarlyStoppingSpec(Section):
    """Which trials stop before their end. Only divergence stops a trial by default. `none` spells out the default.

    Early stopping works with the searches grid, random and optuna.
    """

    asha: AshaSpec | None = None
    """Stop trials by asynchronous successive halving, through Ray Tune and without stacks."""


def _none(value: Any) -> Any:
    """Read `early_stopping: none` as the default."""
    return {} if value == "none" or value is None else value


Search = Annotated[
    SearchSpec,
    BeforeValidator(into("kind", str), json_schema_input_type=Annotated[str, Registered("search")] | SearchSpec),
]
EarlyStopping = Annotated[
    EarlyStoppingSpec, BeforeValidator(_none, json_schema_input_type=Literal["none"] | None | EarlyStoppingSpec)
]
