"""The section `data` of a family that reads samples: what is refused, what is filled in, and what a plan knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_files import mnist, numbered

from hpxfer.data import check_length, data_cautions, data_ref, point_keys, require_data
from hpxfer.errors import HpxferError
from hpxfer.model.families import FAMILIES
from hpxfer.spec import SweepSpec, parse_sweep
from hpxfer.spec.check_keys import data_problems
from hpxfer.spec.data import absolute, stated, with_point_data
from hpxfer.spec.data_section import DataSpec, vocabulary
from hpxfer.trial import setting_of

LONGER = """
name: longer
model:
  family: gpt
  base: {width: 32, depth: 1, num_experts: 2, num_active: 1, expert_ratio: 1, head_dim: 32}
  context: 8
data: {source: "text:unused", validation: "text:unused"}
training: {batch_tokens: 32, steps: 3, validation_tokens: 32}
parameterizations: [sp]
axes: {width: {shapes: [{width: 32, steps: 10, data: "text:unused"}]}}
grid: {lr: [0.01]}
"""
Make = Callable[..., SweepSpec]


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a family that reads samples."""
    monkeypatch.setitem(FAMILIES._rows, "reader", replace(FAMILIES.get("gpt"), name="reader", data="samples"))
    return "reader"


def of_family(spec: SweepSpec, family: str) -> SweepSpec:
    return spec.model_copy(update={"model": spec.model.model_copy(update={"family": family})})


def filled(source: str, **data: Any) -> DataSpec:
    """Return a section `data` with what its samples state."""
    spec = DataSpec(source=source, **data)
    return spec.model_copy(update=stated(spec, Path()))


def broken(spec: SweepSpec) -> list[str]:
    return [f"{'.'.join(map(str, at))}: {rule}" for at, rule in data_problems(spec)]


def test_samples_state_what_they_are(tmp_path: Path) -> None:
    mnist(tmp_path)
    assert stated(DataSpec(source="idx:."), tmp_path) == {"inputs": 15, "classes": 4}
    assert stated(DataSpec(source="idx:.", only=(0, 2)), tmp_path) == {"inputs": 15, "classes": 2}
    assert stated(DataSpec(source="idx:.", inputs=15, classes=9), tmp_path) == {}
    assert stated(DataSpec(source="idx:.", inputs=10), tmp_path) == {"classes": 4}
    assert stated(DataSpec(source="idx:.", targets=2), tmp_path) == {"inputs": 15}
    assert stated(DataSpec(source="builtin:teacher/polynomial", only=(0, 1)), tmp_path) == {"inputs": 20, "targets": 1}
    assert stated(DataSpec(source="idx:nowhere"), tmp_path) == {}
    assert stated(DataSpec(source="builtin:shapes"), tmp_path) == {"inputs": 256, "classes": 100}
    assert stated(DataSpec(source="builtin:teacher/polynomial"), tmp_path) == {"inputs": 20, "targets": 1}
    assert stated(DataSpec(source="builtin:stdlib"), tmp_path) == {}


def test_a_path_of_samples_starts_at_the_folder_and_is_no_glob(tmp_path: Path, make_sweep: Make) -> None:
    spec = absolute(make_sweep("idx:sub", validation="builtin:shapes"), tmp_path / "[a]")
    assert spec.data.source == f"idx:{tmp_path}/[a]/sub"
    assert spec.data.validation == "builtin:shapes"
    assert absolute(make_sweep("text:sub"), tmp_path / "[a]").data.source == f"text:{tmp_path}/[[]a]/sub"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"source": "text:a"},
            "data.source: must name samples, which the family reader reads, got 'text:a'; legal: bui",
        ),
        ({"source": "builtin:stdlib"}, "data.source: must name samples, which the family reader reads"),
        ({"source": "builtin:nothing"}, "data.source: unknown built-in samples 'nothing'; legal: shapes, "),
        ({"source": "builtin:shape"}, "unknown built-in samples 'shape'; did you mean 'shapes'?"),
        ({"source": "nothing"}, "data.source: must be builtin:shapes or "),
        ({"source": "npz:s3://bucket/a.npz"}, "must name samples on a disk, got the URI s3://bucket/a.npz"),
        (
            {"source": "idx:/nowhere"},
            "data.inputs: must be given where the samples are not on this machine, got idx:/now",
        ),
        ({"tokenizer": "ascii"}, "data.tokenizer: goes with tokens, and the family reader reads samples"),
        ({"documents": "masked"}, "data.documents: goes with tokens"),
        ({"eos_id": 0}, "data.eos_id: goes with tokens"),
        (
            {"targets": 2, "classes": 4},
            "data.classes: a sample has either one of several classes or real targets, got both",
        ),
        ({"only": (1,)}, "data.only: must name at least two different classes, got [1]"),
        ({"only": (1, 2), "classes": 4}, "data.classes: must be the 2 classes of data.only, got 4"),
        (
            {"source": "builtin:teacher/polynomial", "only": (1, 2)},
            "data.only: chooses classes, but these samples have re",
        ),
        ({"validation": "text:a"}, "data.validation: must name samples"),
        ({"validation_digest": "ab"}, "data.validation_digest: goes with data.validation"),
    ],
)
def test_what_a_family_of_samples_refuses(make_sweep: Make, reader: str, given: dict[str, Any], message: str) -> None:
    data = filled(**{"source": "builtin:shapes", **given})
    spec = of_family(make_sweep("builtin:shapes"), reader).model_copy(update={"data": data})
    assert any(line.startswith(message) or message in line for line in broken(spec)), broken(spec)


def test_what_a_family_takes(make_sweep: Make, reader: str) -> None:
    def of(data: DataSpec) -> list[str]:
        return broken(of_family(make_sweep("x"), reader).model_copy(update={"data": data}))

    for source in ("builtin:shapes", "builtin:teacher/polynomial", "builtin:teacher/network", "builtin:teacher/few"):
        assert of(filled(source, epochs=3)) == []
    assert of(DataSpec(source="idx:/nowhere", inputs=784, classes=10, digest="ab")) == []
    for source, only in (("builtin:shapes", (3,)), ("builtin:teacher/polynomial", (0, 1))):
        (line,) = of(filled(source, only=only))  # one fault of the classes is one message
        assert line.startswith("data.only: ")
    assert broken(make_sweep("builtin:stdlib")) == []
    for key in ("inputs", "classes", "targets"):
        refusal = f"data.{key}: goes with samples, and the family gpt reads tokens"
        assert refusal in broken(make_sweep("builtin:stdlib", **{key: 3}))
    (line,) = broken(make_sweep("builtin:shapes"))
    assert line.startswith("data.source: must name tokens, which the family gpt reads, got 'builtin:shapes'")


def test_a_point_may_have_samples_of_its_own(tmp_path: Path) -> None:
    for name, train in (("a", 96), ("b", 320)):
        (tmp_path / name).mkdir()
        mnist(tmp_path / name, train=train, test=40)
    data = filled(f"idx:{tmp_path}/a", validation=f"idx:{tmp_path}/b")
    spec = parse_sweep(LONGER).model_copy(update={"data": data})
    spec = with_point_data(spec, lambda own: own.model_copy(update={"source": f"idx:{tmp_path}/b"}))
    check_length(spec)
    (key, own), *_ = point_keys(spec)
    assert data_ref(data, [(key, own)]).others == ((own.source, data_ref(filled(own.source)).digest),)
    fewer = with_point_data(spec, lambda own: own.model_copy(update={"source": f"idx:{tmp_path}/a"}))
    rule = r"axes.width.shapes\[0\].data.source: at axes.width\[0\]: must hold at least 320 samples for 10 steps"
    with pytest.raises(HpxferError, match=rule):
        check_length(fewer)
    longer = spec.model_copy(update={"training": spec.training.model_copy(update={"validation_tokens": 64})})
    with pytest.raises(HpxferError, match=r"data\.validation: must hold at least 64 samples for validation, got 40"):
        check_length(longer)


def test_the_identity_has_sizes_and_digests(tmp_path: Path, make_sweep: Make) -> None:
    data = filled(mnist(tmp_path), only=(1, 2))
    found = data_ref(data)
    assert (found.num_inputs, found.vocab_size, found.tokenizer, found.num_targets) == (15, 2, "none", 0)
    assert vocabulary(data) == ("none", 2)
    setting = setting_of(make_sweep("x").model_copy(update={"data": data}), found)
    assert (setting.num_inputs, setting.vocab_size, setting.only_classes) == (15, 2, (1, 2))
    real = data_ref(filled("builtin:teacher/polynomial"))
    assert (real.num_inputs, real.vocab_size, real.num_targets) == (20, 0, 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"classes": 9, "inputs": 15}, "data.classes: must be as in the samples of .*, 4, got 9"),
        ({"classes": 4, "inputs": 16}, "data.inputs: must be as in the samples of .*, 15, got 16"),
        ({"targets": 2}, "data.targets: must be as in the samples of .*, none, got 2"),
        ({"digest": "ab"}, "data.digest: must be the digest of the data at .*, got ab"),
        (
            {"validation": "builtin:shapes"},
            "data.validation: must hold samples with 15 inputs as data.source, got 256 in builtin:shapes",
        ),
        ({"only": (0, 4)}, "data.only: must name classes from 0 .*, got 4 of 4 classes"),
    ],
)
def test_samples_must_be_as_the_sweep_says(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(HpxferError, match=message):
        data_ref(filled(mnist(tmp_path), **given))


def test_inputs_of_two_kinds_do_not_mix(tmp_path: Path, make_sweep: Make) -> None:
    source = mnist(tmp_path)
    np.savez(tmp_path / "a.npz", x=numbered(40).astype(np.float32), y=np.arange(40) % 4)
    spec = make_sweep("x", batch_tokens=32, validation_tokens=32)
    data = filled(source, validation=f"npz:{tmp_path}/a.npz")
    with pytest.raises(
        HpxferError, match=r"as data\.source, 15 pixels with 4 classes, got 15 real inputs with 4 classes"
    ):
        check_length(spec.model_copy(update={"data": data}))


def test_a_plan_needs_no_samples_but_a_run_does(make_sweep: Make) -> None:
    data = DataSpec(source="cifar:/nowhere", digest="ab", inputs=3072, classes=10)
    assert data_ref(data).digest == "ab"
    spec = make_sweep("x").model_copy(update={"data": data})
    check_length(spec)
    assert list(data_cautions(data)) == []
    with pytest.raises(HpxferError, match=r"data\.source: must name data on this machine, got cifar:/nowhere"):
        require_data(spec)
    with pytest.raises(HpxferError, match=r"or give data\.digest, data\.inputs and data\.classes or data\.targets"):
        data_ref(data.model_copy(update={"digest": None}))


def test_held_out_samples_that_are_trained_on_are_a_caution(tmp_path: Path) -> None:
    source = mnist(tmp_path, test=0)
    (line,) = data_cautions(filled(source, validation=source))
    assert "samples on which the models are trained" in line
    mnist(tmp_path)
    assert list(data_cautions(filled(source, validation=source))) == []
