"""The keys of a refine search, of lines and of two HPs at once."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hpxfer.spec.fields import Section


class RefineSettings(Section):
    """The keys of a refine search."""

    until_octaves: Annotated[float, Field(gt=0, le=100)] = 0.5  # a 0.25% basin is about one octave wide
    """refine: the search ends when the optimum is known to this width, in octaves."""
    max_octaves: Annotated[float, Field(ge=0, le=100)] = 4.0
    """refine: how far the line may be widened beyond either end, in octaves."""
