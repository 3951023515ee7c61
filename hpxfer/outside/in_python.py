"""`hpxfer.judge`: what it says names the parameters of Python where the command line names its options."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import ParamSpec

from hpxfer.errors import HpxferError
from hpxfer.outside import judging
from hpxfer.outside.judging import JudgedTable

_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)(?: (\w+=[^\s;,)]+|[A-Z]{2,}|\d[\d.]*|diverged|missing|last)\b)?")
# Option -> the parameter of another name.
_NAMES = {"map": "columns", "save-table": "save"}
_OF_TRACKER = ("metric", "reduce", "pattern", "steps")
Given = ParamSpec("Given")


def in_python(text: str) -> str:
    """Return a text with options as parameters: `--map value=lr` as `columns={'value': 'lr'}`."""

    def parameter(found: re.Match[str]) -> str:
        option, value = found.groups()
        name = _NAMES.get(option, option.replace("-", "_"))
        if option == "map" and value:
            key, _, column = value.partition("=")
            return f"{name}={{{key!r}: {column!r}}}"
        set_to = name if value is None else f"{name}={value if value[0].isdigit() else repr(value)}"
        return f"tracker=Choices({set_to})" if option in _OF_TRACKER else set_to

    return _OPTION.sub(parameter, text).replace("} columns={", ", ")


def _speaking(judge: Callable[Given, JudgedTable]) -> Callable[Given, JudgedTable]:
    @wraps(judge)
    def judged(*args: Given.args, **given: Given.kwargs) -> JudgedTable:
        try:
            found = judge(*args, **given)
        except HpxferError as error:
            raise HpxferError(in_python(str(error))) from None
        notes = tuple(map(in_python, found.analysis.notes))
        return replace(found, analysis=replace(found.analysis, notes=notes), spell=in_python)

    return judged


judge = _speaking(judging.judge)
