"""The frozen table of block sizes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from hpxfer.kernels import configs
from hpxfer.kernels.configs import TABLE_PATH, config_hash, find_config, num_parts, table

ARCHITECTURES = ("sm90", "sm80", "default", "interpreter")


def test_the_table_is_what_the_file_says() -> None:
    data = json.loads(TABLE_PATH.read_text(encoding="utf-8"))
    assert all(row["architecture"] in ARCHITECTURES for row in data["measured"])
    assert set(table()) == set(data["architectures"]) == set(ARCHITECTURES)
    assert table() == table(TABLE_PATH.read_text(encoding="utf-8"))


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 64, 65, 1 << 20])
@pytest.mark.parametrize("features", [8, 128, 2048, 50304])
def test_every_shape_has_an_entry(
    monkeypatch: pytest.MonkeyPatch, arch: str, dtype: torch.dtype, rows: int, features: int
) -> None:
    monkeypatch.setattr(configs, "architecture", lambda device: arch)
    found = find_config(torch.device("cpu"), dtype, rows, features)
    assert found in table()[arch]
    assert found.covers(dtype.itemsize, rows, features)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_blocks_are_what_a_tensor_core_takes(arch: str) -> None:
    for config in table()[arch]:
        rows = (config.product, config.up, config.gated, config.hidden)
        sides = [config.m, *(row.k for row in rows), *(row.n for row in rows)]
        sides += [config.gradient.i, config.gradient.o, config.gradient.n]
        assert all(side >= 16 and side & (side - 1) == 0 for side in sides), config


def test_parts_follow_from_the_shape() -> None:
    config = replace(table()["sm90"][2], programs=264)
    sides = config.gradient.i * 2, config.gradient.o * 2
    assert num_parts(config, 1, 1 << 20, *sides) == 16  # never more
    assert num_parts(config, 4, 1 << 20, *sides) == 16
    assert num_parts(config, 33, 1 << 20, *sides) == 2
    assert num_parts(config, 64, 1 << 20, *sides) == 1  # 256 programs in one wave; 512 would be two
    assert num_parts(config, 80, 1 << 20, *sides) == 4  # 1280 programs are 5 waves of a quarter; 320 are 2 whole ones
    assert num_parts(config, 66, 1 << 20, *sides) == 1
    assert num_parts(config, 1, 3 * config.gradient.n, *sides) == 1  # a part has at least four iterations
    assert num_parts(config, 1, 8 * config.gradient.n, *sides) == 2
    assert num_parts(config, 1, 0, *sides) == 1


# Each entry with a size in its class and its matrix gradient's programs for E = 4 on a GPU of 132 multiprocessors.
@pytest.mark.parametrize(
    ("entry", "size", "rows", "programs"),
    [
        (1, 128, 1 << 14, 256),
        (2, 512, 1 << 13, 256),
        (3, 1024, 1 << 14, 128),
        (3, 2048, 1 << 14, 512),
        (4, 512, 1024, 768),
    ],
)
def test_the_programs_of_a_matrix_gradient_fill_whole_waves(entry: int, size: int, rows: int, programs: int) -> None:
    config = table()["sm90"][entry]
    blocks = -(-size // config.gradient.i) * -(-size // config.gradient.o)
    assert 4 * blocks * num_parts(config, 4, rows, size, size) == programs
    most = 4 * blocks * 16
    assert programs == most or programs / (-(-programs // config.programs) * config.programs) > 0.96


def test_an_entry_may_say_what_multiplies() -> None:
    data = json.loads(TABLE_PATH.read_text(encoding="utf-8"))
    entry = data["architectures"]["sm90"][0]
    entry.pop("products", None)
    assert table(json.dumps(data))["sm90"][0].products == "triton"
    entry["products"] = "library"
    assert table(json.dumps(data))["sm90"][0].products == "library"
    entry["products"] = "cublas"
    with pytest.raises(AssertionError, match="cublas"):
        table(json.dumps(data))


def test_the_hash_is_of_the_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    before = config_hash()
    data = json.loads(TABLE_PATH.read_text(encoding="utf-8"))
    path = tmp_path / "configs.json"  # type: ignore[operator]
    monkeypatch.setattr(configs, "TABLE_PATH", path)
    path.write_text(json.dumps({**data, "note": "other words"}))
    assert config_hash() == before
    data["architectures"]["sm90"][0]["m"] = 64
    path.write_text(json.dumps(data))
    assert config_hash() != before
