"""Flow: samples on their way from noise. A batch is (inputs float32 [B, S*P + 2], targets float32 [B, S*P]).

    inputs     z = t x + (1 - t) e, patch by patch; then t, and the class
    targets    u = x - e

Time and noise are random words of the sample's number, counted from the first step on. The key of their stream is
`flow/SEED` in training. So all trials of a seed see the same draws, whatever their HPs and whatever is stacked beside
them, and a batch that is cut into pieces is unchanged. Held-out samples have one stream for all seeds and shapes, and
times that lie evenly in their law, in a fixed random order.

Letters: B samples, S patches of a sample, P numbers of a patch, c channels, p the side of a patch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray

from hpxfer.data import Batch, Data, SampleData, shuffled, words
from hpxfer.errors import HpxferError
from hpxfer.model.dit.section import DiTSpec, options_of
from hpxfer.model.draws import to_normal
from hpxfer.trial import Setting

VALIDATION = "validation"
_TIME_BITS = 24  # of a uniform time, which float32 holds exactly


@dataclass(frozen=True, kw_only=True, eq=False)
class FlowData(Data):
    """Samples with noise. `shape` is that of a sample, channels first."""

    samples: SampleData
    options: DiTSpec
    shape: tuple[int, int, int]
    channels_last: bool = False

    @property
    def validation_tokens(self) -> int:  # type: ignore[override]
        return self.samples.validation_tokens

    @property
    def batch_rows(self) -> int:
        return self.samples.batch_rows

    def rows(self, seed: int, begin: int, end: int) -> Batch:
        found = words(f"flow/{seed}", begin, end, self._words)
        return self._noisy(self.samples.rows(seed, begin, end), self._times(found[:, 0]), found)

    def validation_batches(self) -> Iterator[Batch]:
        count, begin = self.validation_tokens, 0
        places = shuffled(np.arange(count), count, 0)
        for batch in self.samples.validation_batches():
            end = begin + len(batch[0])
            found = words(f"flow/{VALIDATION}", begin, end, self._words)
            shares = (places[begin:end] + 0.5) / count
            yield self._noisy(batch, self._law(shares), found)
            begin = end

    @property
    def _words(self) -> int:
        """The words of a sample: one for its time, and one for two numbers of its noise."""
        return 1 + (math.prod(self.shape) + 1) // 2

    def _times(self, found: NDArray[np.uint64]) -> NDArray[np.float32]:
        shares = ((found >> np.uint64(64 - _TIME_BITS)).astype(np.float64) + 0.5) / 2**_TIME_BITS
        return self._law(shares)

    def _law(self, shares: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the times below which so large a share of all times lies."""
        if self.options.t == "uniform":
            return shares.astype(np.float32)
        normal = NormalDist()
        return np.array([1 / (1 + math.exp(-normal.inv_cdf(share))) for share in shares.tolist()], np.float32)

    def _noisy(self, batch: Batch, t: NDArray[np.float32], found: NDArray[np.uint64]) -> Batch:
        """Return a batch of samples with their times, and the noise that their words give."""
        x, classes = self._patches(batch[0]), batch[1]
        halves = np.ascontiguousarray(found[:, 1:], dtype="<u8").view("<i4")
        e = to_normal(torch.from_numpy(halves)).numpy()[:, : x.shape[1]]
        t = t[:, None]
        z = t * x + (1 - t) * e
        return np.concatenate([z, t, classes[:, None].astype(np.float32)], axis=1), x - e

    def _patches(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return samples patch by patch, [B, S*P]: the patches row by row, each as channels x rows x columns."""
        return patched(x, self.shape, self.options.patch, channels_last=self.channels_last)


def patched(
    x: NDArray[np.float32], shape: tuple[int, int, int], patch: int, *, channels_last: bool = False
) -> NDArray[np.float32]:
    """Return samples [B, c * side * side] patch by patch, [B, S*P]."""
    channels, side, _ = shape
    images = x.reshape(len(x), side, side, channels).transpose(0, 3, 1, 2) if channels_last else x
    blocks = images.reshape(len(x), channels, side // patch, patch, side // patch, patch)
    return np.ascontiguousarray(blocks.transpose(0, 2, 4, 1, 3, 5)).reshape(len(x), -1)


def pictured(z: NDArray[np.float32], shape: tuple[int, int, int], patch: int) -> NDArray[np.float32]:
    """Return the samples [B, c, side, side] of what `patched` returns."""
    channels, side, _ = shape
    blocks = z.reshape(len(z), side // patch, side // patch, channels, patch, patch)
    return np.ascontiguousarray(blocks.transpose(0, 3, 1, 4, 2, 5)).reshape(len(z), *shape)


def flow_of(setting: Setting, data: Data) -> FlowData:
    """Return the samples of a trial on their way from noise.

    Raise HpxferError unless a sample is a square image of the sweep's channels, pixels are normalized, and each sample
    has a class.
    """
    assert isinstance(data, SampleData), "the family reads samples"
    options, facts = options_of(setting), data.samples.facts
    where = f"data.source: {setting.data_source}"
    shape = facts.shape if len(facts.shape) == 3 else (1, *facts.shape)
    first = len(shape) == 3 and shape[1] == shape[2] and shape[0] == options.channels
    last = len(shape) == 3 and shape[0] == shape[1] and shape[2] == options.channels
    if not (first or last):
        rule = f"must hold square samples of {options.channels} channels for model.dit.channels"
        raise HpxferError(f"{where}: {rule}, got {' x '.join(map(str, facts.shape))}")
    if facts.is_pixels and (data.samples.normalization is None or not data.samples.normalization[1] > 0):
        got = data.samples.normalization or "none"
        raise HpxferError(f"{where}: pixels must have a mean and a standard deviation above 0, got {got}")
    side = shape[1] if first else shape[0]
    return FlowData(samples=data, options=options, shape=(options.channels, side, side), channels_last=not first)
