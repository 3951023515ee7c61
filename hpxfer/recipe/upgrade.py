"""Upgrade: recipes of older versions, as this version would have written them. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpxfer.spec.yaml_file import YamlFile

VERSION_KEY = "hpxfer_recipe"


def upgraded(file: YamlFile) -> YamlFile:
    """Return the file with the data of the newest version; lines stay those of the file.

    What is broken stays broken: the check that follows says it, in the words of the newest version.
    """
    data = dict(file.data)
    if data[VERSION_KEY] == 1:
        data = _from_1(data)
    return replace(file, data=data)


def _from_1(data: dict[str, Any]) -> dict[str, Any]:
    """Version 2 knows of SwiGLU, dense blocks, a base's batch and duration, and of recipes that no sweep made."""
    data[VERSION_KEY] = 2
    if isinstance(model := data.get("model"), dict):
        data["model"] = {"ffn": "gelu", "moe_every": 1, "dense_first": 0, **model}
    if isinstance(provenance := data.get("provenance"), dict):
        data["provenance"] = {"made": "by a sweep", **provenance}
    base, training = data.get("base_shape"), data.get("training")
    if isinstance(base, dict) and isinstance(training, dict):
        known = {name: training[name] for name in ("batch_tokens", "steps") if name in training}
        data["base_shape"] = {**base, **known}
    return data
