"""Built-in samples, whose first bits are pinned; and sample sources, with broken ones that their suite must refuse."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sample_files import cifar_records, mnist, numbered

from hpxfer.data.made import shapes, teacher
from hpxfer.data.made.makers import MAKERS, EndlessSamples
from hpxfer.data.sources import SAMPLE_SOURCES, SampleSource, open_samples
from hpxfer.testing.sample_sources import SampleSourceSuite

# Of the first 300 samples of seed 0. Another digest needs another VERSION, because stored results rely on the samples.
PINNED = {
    "shapes": "c7dc8dc7397d4e36d3a697b66760e59c",
    "teacher/polynomial": "c6814ae05cfe463819e7791833086928",
    "teacher/network": "7b3d268d1b8a1dbe9fda7baed266f91d",
    "teacher/few": "dc902d630ed0c7c9caf73af1802f8a88",
}
EVERY = tuple(range(100))


def hashed(name: str, stream: str = "train 0") -> str:
    facts = MAKERS[name].facts
    found = MAKERS[name].draw(stream, 0, 300, tuple(range(facts.num_classes)))
    little = (np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for array in found)
    return hashlib.blake2b(b"".join(array.tobytes() for array in little), digest_size=16).hexdigest()


@pytest.mark.parametrize("name", MAKERS)
def test_the_first_samples_have_these_bits_and_each_is_a_function_of_its_number(name: str) -> None:
    assert hashed(name) == PINNED[name]
    assert hashed(name, "train 1") != PINNED[name]
    classes = tuple(range(MAKERS[name].facts.num_classes))
    whole = MAKERS[name].draw("train 5", 0, 40, classes)
    for begin, end in ((0, 1), (7, 40), (39, 40)):
        for one, other in zip(whole, MAKERS[name].draw("train 5", begin, end, classes), strict=True):
            assert np.array_equal(one[begin:end], other)


def test_chosen_classes_keep_their_look() -> None:
    x, y = shapes.draw("train 0", 0, 4000, (7, 3))
    every_x, every_y = shapes.draw("train 0", 0, 20_000, EVERY)
    assert abs(every_x.mean() - shapes.MEAN) < 1
    assert abs(every_x.std() - shapes.STD) < 1
    for place, label in enumerate((7, 3)):
        near = ((x[y == place].mean(axis=0) - every_x[every_y == label].mean(axis=0)) ** 2).mean()
        far = ((x[y == place].mean(axis=0) - every_x[every_y == 50].mean(axis=0)) ** 2).mean()
        assert near < far / 4


def test_the_polynomial_is_that_of_its_page() -> None:
    x, y = teacher.polynomial("train 0", 0, 20_000, ())
    index = np.arange(16)
    u = [x[:, :16] @ [(-1) ** bin(row & k).count("1") for k in index] / 4 for row in (3, 5, 9, 14)]
    expected = (u[0] + u[0] * u[1] + u[0] * u[1] * u[2] + u[0] * u[1] * u[2] * u[3]) / 2
    assert np.allclose(y[:, 0], expected, atol=0.02, rtol=0.02)  # directions are rounded to 2^-10
    assert y.dtype == np.float32
    assert y.mean() == pytest.approx(0, abs=0.05)
    assert y.var() == pytest.approx(1, abs=0.15)


def test_every_class_of_the_network_occurs() -> None:
    _, y = teacher.network("train 0", 0, 20_000, EVERY)
    counts = np.bincount(y, minlength=100)
    assert counts.min() >= 50
    assert counts.max() <= 800
    _, chosen = teacher.network("train 0", 0, 20_000, (4, 9))
    assert np.array_equal(chosen[y == 9], np.ones(counts[9]))
    assert np.array_equal(chosen[y == 4], np.zeros(counts[4]))


def test_the_identity_is_the_name_and_the_version() -> None:
    digests = {open_samples(f"builtin:{name}").digest() for name in MAKERS}  # type: ignore[union-attr]
    assert len(digests) == len(MAKERS)
    found = open_samples("builtin:shapes", only=(1, 2))
    assert found is not None
    assert found.digest() in digests
    assert found.facts.num_classes == 2


def test_few_samples_are_the_same_for_all_seeds_and_steps() -> None:
    found = open_samples("builtin:teacher/few")
    assert found is not None
    inputs, targets = found.train(0, 0, 12, 0)
    assert inputs.shape == (12, 4)
    assert np.array_equal(inputs, np.tile(inputs[:4], (3, 1)))
    assert len(np.unique(inputs[:, 0])) == 4
    for one, other in zip((inputs[3:9], targets[3:9]), found.train(7, 3, 9, 0), strict=True):
        assert np.array_equal(one, other)
    assert np.allclose(targets[:, 0], inputs[:, 0] + inputs[:, 1] * inputs[:, 2], atol=1e-6)
    held_out, _ = found.held_out(0, 4)
    assert not set(held_out[:, 0].tolist()) & set(inputs[:, 0].tolist())


def written(kind: str, folder: Path) -> str:
    """Write 30 samples of a kind, and return their source."""
    if kind == "npz":
        np.savez(folder / "a.npz", x=numbered(30).astype(np.float64), y=np.arange(30.0))
        return f"npz:{folder}/a.npz"
    if kind == "cifar":
        content = cifar_records(numbered(30, 3072), [k % 10 for k in range(30)])
        (folder / "data_batch_1.bin").write_bytes(content)
    for number in range(30 if kind == "images" else 0):
        of_class = folder / "train" / f"class{number % 3}"
        of_class.mkdir(parents=True, exist_ok=True)
        Image.fromarray(numbered(1, 12, start=number).reshape(3, 4)).save(of_class / f"{number}.png")
    return mnist(folder) if kind == "idx" else f"{kind}:{folder}"


class TestFormats(SampleSourceSuite):
    @pytest.fixture(params=["idx", "cifar", "npz", "images", *(f"builtin:{name}" for name in MAKERS)])
    def source(self, tmp_path: Path, request: pytest.FixtureRequest) -> str:
        kind: str = request.param
        return kind if kind.startswith("builtin") else written(kind, tmp_path)


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
