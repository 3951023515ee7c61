"""The shipped sample sources, and broken ones that the suite must refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sample_files import cifar_records, mnist, numbered

from hpxfer.data.samples import SAMPLE_SOURCES, SampleSource
from hpxfer.data.samples.builtin import MAKERS
from hpxfer.data.samples.endless import EndlessSamples
from hpxfer.testing.sample_sources import SampleSourceSuite


class TestIdx(SampleSourceSuite):
    @pytest.fixture
    def source(self, tmp_path: Path) -> str:
        return mnist(tmp_path)


class TestCifar(SampleSourceSuite):
    @pytest.fixture
    def source(self, tmp_path: Path) -> str:
        labels = [k % 10 for k in range(30)]
        (tmp_path / "data_batch_1.bin").write_bytes(cifar_records(numbered(30, 3072), labels))
        return f"cifar:{tmp_path}"


class TestNpz(SampleSourceSuite):
    @pytest.fixture
    def source(self, tmp_path: Path) -> str:
        np.savez(tmp_path / "a.npz", x=numbered(30).astype(np.float64), y=np.arange(30.0))
        return f"npz:{tmp_path}/a.npz"


class TestImages(SampleSourceSuite):
    @pytest.fixture
    def source(self, tmp_path: Path) -> str:
        for number in range(30):
            folder = tmp_path / "train" / f"class{number % 3}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(numbered(1, 12, start=number).reshape(3, 4)).save(folder / f"{number}.png")
        return f"images:{tmp_path}"


@pytest.mark.parametrize("source", [f"builtin:{name}" for name in MAKERS])
class TestBuiltin(SampleSourceSuite):
    pass


def wrong(fault: str) -> SampleSource:
    """Return a source of images with one fault."""

    def draw(stream: str, begin: int, end: int, classes: tuple[int, ...]) -> tuple[Any, Any]:
        x, y = MAKERS["shapes"].draw(stream, 0 if fault == "place" else begin, end, classes)
        x, y = x[len(x) - (end - begin) :], y[len(y) - (end - begin) :]
        if fault == "place":
            x = np.roll(x, begin + 1, axis=0)
        return (x.astype(np.float32) if fault == "type" else x), (y + 100 if fault == "classes" else y)

    maker = replace(MAKERS["shapes"], name=f"wrong {fault}", draw=draw)
    return SampleSource(name="wrong", usage="wrong:x", is_path=False, open=lambda _: _Alone(maker=maker))


class _Alone(EndlessSamples):
    """Samples without the cache, which would hide that they depend on how many are read."""

    def train(self, seed: int, begin: int, end: int, num_kept: int) -> tuple[Any, Any]:
        return self.maker.draw(f"train {seed}", begin, end, self.classes or tuple(range(self.facts.num_classes)))


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        ("type", "test_samples_are_as_the_facts_say"),
        ("classes", "test_samples_are_as_the_facts_say"),
        ("place", "test_samples_do_not_depend_on_how_many_are_read"),
    ],
)
def test_a_fault_is_found(fault: str, test: str) -> None:
    with SAMPLE_SOURCES.registered(wrong(fault)), pytest.raises(AssertionError):
        getattr(SampleSourceSuite(), test)("wrong:x")
