"""The JSON Schema of a sweep file, for editors. It knows each key, type and default, but not the rules of `checks`."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from hpxfer.spec.sweep import SweepSpec


class _Generate(GenerateJsonSchema):
    """pydantic's generator without the titles that it makes up from the names of the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def generate(self, schema: Any, mode: Any = "validation") -> JsonSchemaValue:
        return {"$schema": self.schema_dialect, **super().generate(schema, mode)}


def sweep_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a sweep file."""
    schema = TypeAdapter(SweepSpec).json_schema(schema_generator=_Generate)
    model = schema["$defs"]["ModelSpec"]
    for key in ("family", "base"):
        model["required"].remove(key)
    for key in ("data", "parameterizations"):
        schema["required"].remove(key)
    # A recipe says the family, the base and the table, and a preset the family. A user's own trainer has neither a base
    # nor data of ours, and arms of its own may stand in the place of tables.
    trainer = {"required": ["trainer"]}
    recipe = {"properties": {"hps": {"required": ["recipe"]}}, "required": ["hps"]}
    family = {"anyOf": [{"required": ["family"]}, {"required": ["like"]}], "required": ["base"]}
    ours = {"required": ["parameterizations", "data"], "properties": {"model": family}}
    schema["anyOf"] = [trainer, {**recipe, "required": ["hps", "data"]}, ours]
    return schema
