"""Preparation through Ray Data: the same bytes as on one machine, and errors in words."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from corpus import documents, jsonl, tokenizer_file

from hpxfer.errors import HpxferError
from hpxfer.executors import ray_session  # before ray itself: it sets Ray's environment
from hpxfer.prepare.run import prepare_data

pytestmark = pytest.mark.slow

TEXTS = documents(60)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray_session.ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield
        ray_session.ray.shutdown()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_the_same_bytes_as_on_one_machine(tmp_path: Path) -> None:
    tokenizer = str(tokenizer_file(tmp_path / "tokenizer.json"))
    jsonl(tmp_path / "in" / "a.jsonl", TEXTS[:30])
    jsonl(tmp_path / "in" / "b.jsonl.gz", TEXTS[30:])
    made = [
        prepare_data(
            f"{tmp_path}/in",
            tokenizer=tokenizer,
            out=tmp_path / name,
            val_tokens=512,
            shard_tokens=2000,
            address=address,
            workers=1 if address is None else None,
        )
        for name, address in (("here", None), ("ray", "auto"))
    ]
    assert made[0] == made[1]
    here, there = (
        {path.name: path.read_bytes() for path in sorted((tmp_path / name).glob("*")) if path.is_file()}
        for name in ("here", "ray")
    )
    assert here == there


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    tokenizer = str(tokenizer_file(tmp_path / "tokenizer.json"))
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"body": "x"}\n')
    with pytest.raises(HpxferError, match=r"a\.jsonl:2: must have the field 'text', got body"):
        prepare_data(f"{tmp_path}/a.jsonl", tokenizer=tokenizer, out=tmp_path / "out", address="auto")
