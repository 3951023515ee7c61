"""The offline tuner, with a clock and a compiler that the test controls."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hpxfer.bench import tune as tuner
from hpxfer.bench.tune import Sample, best, candidates, known_lines, name_of, sample, step
from hpxfer.bench.tune_table import Written
from hpxfer.errors import HpxferError
from hpxfer.kernels import configs
from hpxfer.kernels.configs import TABLE_PATH, Config, Product, config_hash, table

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TINY = replace(table()["interpreter"][1], dtype_bytes=2, max_rows=4, max_features=8)
WANTED = Product(n=64, k=64, warps=8, stages=4)
STAMP: dict[str, Any] = {"machine": {"gpu": "H200"}, "versions": {"torch": "2.11"}}


def clock(config: Config, drawn: Sample) -> float:
    """A layer is fastest with WANTED everywhere, 528 programs and tiles of 32 rows."""
    wrong = sum(getattr(config, name) != WANTED for name in ("product", "up", "hidden"))
    return 1.0 + wrong + (config.programs != 528) + (config.m != 32) + (config.products != "library")


def nothing_wrong(configs: Sequence[Config], drawn: Sample, until: float) -> Mapping[Config, str | None]:
    return dict.fromkeys(configs)


def search(**more: Any) -> tuple[Config, list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    given = {"clock": clock, "check": nothing_wrong, "tell": lines.append, "known": {}, **more}
    return best(TINY, DEVICE, **given), lines


def test_the_fastest_of_every_field_stays() -> None:
    found, lines = search()
    blocks = {"product": WANTED, "up": WANTED, "hidden": WANTED}
    assert found == replace(TINY, m=32, programs=528, products="library", **blocks)
    assert {line["field"] for line in lines} == set(tuner.FIELDS)
    assert all(line["ms"] > 0 for line in lines)


def test_what_the_compiler_shows_to_spill_is_not_timed() -> None:
    timed: list[Config] = []

    def spills(configs: Sequence[Config], drawn: Sample, until: float) -> Mapping[Config, str | None]:
        return {one: "up spills 80 bytes" if WANTED in (one.product, one.up, one.hidden) else None for one in configs}

    def noted(config: Config, drawn: Sample) -> float:
        timed.append(config)
        return clock(config, drawn)

    found, lines = search(clock=noted, check=spills)
    assert WANTED not in (found.product, found.up, found.hidden)
    assert all(WANTED not in (one.product, one.up, one.hidden) for one in timed)
    assert sum(line.get("skipped") == "up spills 80 bytes" for line in lines) == 3


def test_a_candidate_that_fails_costs_itself() -> None:
    def fails(config: Config, drawn: Sample) -> float:
        if config.m == 32:
            raise RuntimeError("out of resource: shared memory")
        return clock(config, drawn)

    found, lines = search(clock=fails)
    assert found.m == TINY.m != 32
    assert "RuntimeError: out of resource: shared memory" in [line.get("skipped") for line in lines]


def test_an_entry_that_cannot_run_is_replaced() -> None:
    def fails(config: Config, drawn: Sample) -> float:
        if config.m == TINY.m:
            raise RuntimeError("out of resource: shared memory")
        return clock(config, drawn)

    assert search(clock=fails)[0].m == 32 != TINY.m


def test_a_library_that_does_not_take_the_layer_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner.experts_library, "can_run", lambda *given: False)
    found, lines = search()
    assert found.products == "triton"
    assert lines[-1]["skipped"] == "F.grouped_mm does not take this layer here"


def test_a_second_run_times_nothing_again() -> None:
    found, lines = search()
    known = {line["key"]: line for line in lines}

    def never(config: Config, drawn: Sample) -> float:
        raise AssertionError(config)

    again, more = search(clock=never, known=known)
    assert again == found
    assert more == []


def test_the_time_ends_a_search_and_what_it_leaves_out_is_said() -> None:
    found, lines = search(seconds=-1.0)
    assert found == TINY
    assert [line["field"] for line in lines] == list(tuner.FIELDS)
    assert all("candidates, for lack of time" in line["left_out"] for line in lines)


def test_what_was_not_compiled_in_time_is_not_timed() -> None:
    def first(configs: Sequence[Config], drawn: Sample, until: float) -> Mapping[Config, str | None]:
        return dict.fromkeys(configs[:1])

    _, lines = search(check=first)
    counts = Counter(line["field"] for line in lines if "ms" in line)
    assert counts == {**dict.fromkeys(tuner.FIELDS, 2), "programs": 6}
    assert {line["field"] for line in lines if "left_out" in line} == {*tuner.FIELDS} - {"programs", "products"}


@pytest.mark.parametrize("config", table()["sm90"], ids=name_of)
def test_a_search_is_small_enough_for_its_time(config: Config) -> None:
    """A candidate takes about three seconds to compile twice. No candidate is the entry itself."""
    found = [other for field in tuner.FIELDS for other in candidates(config, field)]
    assert len(found) < 75
    assert config not in found
    assert {other.programs for other in found} > {132, 264}
    assert {other.products for other in found} == {"triton", *(["library"] if config.dtype_bytes == 2 else [])}


def test_the_table_it_writes_is_read_back(tmp_path: Path) -> None:
    written = Written.read(tmp_path / "new.json")
    assert table(written.text()) == table()
    assert written.text() == TABLE_PATH.read_text(encoding="utf-8")


def test_one_measured_entry_marks_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "configs.json"
    entry = table()["sm90"][2]
    new = replace(entry, programs=999)
    for found in (replace(entry, programs=5), new):  # measured again, it stands once
        Written.read(tmp_path / "none").with_entry("sm90", entry, found, {"entry": name_of(entry), **STAMP}).write(path)
    data = json.loads(path.read_text())
    assert [(row["architecture"], row["entry"], row["machine"]) for row in data["measured"]] == [
        ("sm90", "bf16-512", {"gpu": "H200"})
    ]
    got = table(path.read_text())
    assert got == {**table(), "sm90": tuple(new if one == entry else one for one in table()["sm90"])}
    before = config_hash()
    monkeypatch.setattr(configs, "TABLE_PATH", path)
    assert config_hash() != before
    path.write_text(json.dumps({**data, "measured": []}))
    assert config_hash() != before  # the blocks alone count


def test_each_entry_is_written_as_it_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in the second entry leaves a whole table with the first one, and the times of both."""
    first, second, *_ = table()["interpreter"]
    done: list[str] = []

    def found(config: Config, device: object, *, tell: Any, **more: Any) -> Config:
        done.append(name_of(config))
        tell({"entry": name_of(config), "field": "m", "key": "k", "ms": 1.0})
        if len(done) == 2:
            raise RuntimeError("the GPU is gone")
        return replace(config, programs=7)

    monkeypatch.setattr(tuner, "best", found)
    monkeypatch.setattr(tuner, "architecture", lambda device: "interpreter")
    monkeypatch.setattr(tuner, "machine_of", lambda device: STAMP["machine"])
    monkeypatch.setattr(tuner, "versions_of", lambda device: STAMP["versions"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = TABLE_PATH.read_bytes()
    path = tmp_path / "mine" / "configs.json"
    with pytest.raises(RuntimeError, match="the GPU is gone"):
        tuner.tune((), path, lambda line: None)
    assert TABLE_PATH.read_bytes() == before
    assert table(path.read_text())["interpreter"][:2] == (replace(first, programs=7), second)
    assert set(known_lines(tmp_path / "mine" / "configs.jsonl", STAMP)) == {"k"}
    assert known_lines(tmp_path / "mine" / "configs.jsonl", {**STAMP, "machine": {"gpu": "A100"}}) == {}
    with pytest.raises(HpxferError, match="--entry: interpreter has no entry 'bf16-7'"):
        tuner.tune(("bf16-7",), path, lambda line: None)


def test_without_a_gpu_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(HpxferError, match="needs a CUDA device, got none; run it on the machine that will train"):
        tuner.tune((), tmp_path / "configs.json", lambda line: None)


def test_an_output_that_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "configs.json"
    path.write_text('{"architectures": {}}')
    with pytest.raises(HpxferError, match=r"configs.json: must be a table of block sizes, got 'measured'; name a new"):
        Written.read(path)


@pytest.mark.parametrize("products", ["triton", "library"])
def test_a_step_runs_the_layer(products: Any) -> None:
    config = replace(TINY, products=products, dtype_bytes=4)
    grads = step(config, sample(config, gated=True, device=DEVICE))()
    assert torch.isfinite(grads.x).all()  # type: ignore[attr-defined]


def test_the_names_of_the_entries_are_unique() -> None:
    for entries in table().values():
        names = [name_of(config) for config in entries]
        assert len(set(names)) == len(names)
        assert all(asdict(config) for config in entries)
