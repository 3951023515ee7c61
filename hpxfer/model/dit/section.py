"""The section `model` of a sweep of the family `dit`. The text below a field documents its key."""

from __future__ import annotations

from typing import Literal

from hpxfer.scaling.evaluate import BaseInit
from hpxfer.spec import Count, NotNegative, Positive, Section, TransformerModel
from hpxfer.trial import Setting


class DiTSpec(Section):
    """The options of the family `dit`. Each is part of a trial's identity."""

    patch: Count = 2
    """The side of a patch in pixels, or in numbers of a latent. Each patch is a token."""
    channels: Count = 1
    """The channels of a sample: `inputs` numbers are a square of them, such as 3 x 32 x 32."""
    frequencies: Count = 64
    """The cosines and sines of the time that the model reads, an even number."""
    time_scale: Positive = 1000.0
    """What multiplies the time, which is from 0 to 1, in these."""
    positions: Literal["sincos", "learned"] = "sincos"
    """How a token knows its place: a fixed table of sines and cosines of row and column, or a learned one."""
    adaln_init: Literal["zero", "random"] = "zero"
    """How shifts, scales and gates start. `zero`: each block starts as the identity (DiT, SiT). `random`: by fan-in, as
    other matrices. It changes the base model and its best LR."""
    readout_init: Literal["zero", "random"] = "zero"
    """How the readout starts: at zero, so that the first loss is that of a guess of zero, or by fan-in."""
    t: Literal["uniform", "logit_normal"] = "uniform"
    """The law of the time in training and validation. logit_normal is the sigmoid of a normal number (SD3)."""
    classes_used: bool = True
    """Whether the model reads the class of a sample."""
    label_std: NotNegative = 1.0
    """The init std of the table of classes."""


class DiTModel(TransformerModel):
    """A diffusion transformer that learns the velocity from noise to samples, such as images or their latents."""

    family: Literal["dit"]
    """The architecture: a diffusion transformer."""
    dit: DiTSpec = DiTSpec()
    """The options of the family."""
    norm_eps: Positive = 1e-6
    """What every norm adds to the variance, or to the mean square, before the root."""
    norm_gains: Literal[False] = False
    """Shifts and scales of the condition stand in for gains."""
    loss: Literal["velocity"] = "velocity"
    """The training loss of a sample: the mean squared error of its velocity."""

    @property
    def positions(self) -> str:
        """How a token knows its place."""
        return self.dit.positions

    def base_init(self, inputs: int | None = None) -> BaseInit:
        """Return how the base model starts. The fan-ins of patches and frequencies are no dimensions of the shape."""
        given, constant = self.dit, self.matrix_std if self.init == "constant" else None
        zeros = [
            *(("modulation", "final_modulation") if given.adaln_init == "zero" else ()),
            *(("readout",) if given.readout_init == "zero" else ()),
        ]
        stds = {
            "patch_in": constant or patch_features(given) ** -0.5,
            "time_in": constant or (given.frequencies / 2) ** -0.5,  # cos^2 + sin^2 = 1
            "label": given.label_std,
            **dict.fromkeys(zeros, 0.0),
        }
        return BaseInit(
            matrices=self.init,
            matrix_std=BaseInit.matrix_std if constant is None else constant,
            scale_of=self.init_scale_of,
            stds=tuple(sorted(stds.items())),
        )


def options_of(setting: Setting) -> DiTSpec:
    """Return the options of a trial."""
    return DiTSpec(**setting.own["dit"])


def patch_features(options: DiTSpec) -> int:
    """Return the numbers of a patch."""
    return options.channels * options.patch**2


def num_tokens(setting: Setting) -> int:
    """Return the tokens of a sample."""
    return setting.num_inputs // patch_features(options_of(setting))
