"""The rows of a conditioned model by class, as a test of a table expects them."""

from __future__ import annotations

from typing import TypeVar

Numbers = TypeVar("Numbers")


def condition_rows(inputs: Numbers, inside: Numbers, outside: Numbers, bias: Numbers) -> dict[str, Numbers]:
    """Return role -> numbers: of inputs, of matrices inside and outside of the blocks, and of the last bias."""
    return {
        **dict.fromkeys(("patch_in", "time_in", "label"), inputs),
        "modulation": inside,
        **dict.fromkeys(("time_out", "final_modulation"), outside),
        "final_bias": bias,
    }
