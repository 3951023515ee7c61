"""sweep.yaml: what was run, loadable without the data; an edit keeps what was there."""

from __future__ import annotations

import hashlib
from pathlib import Path

from made_results import DIGEST, SPEC, files

from hpxfer.spec import load_sweep
from hpxfer.store import SWEEP_FILE, Store

EDITED = SPEC.model_copy(update={"seeds": (0, 1, 2)})


def test_it_loads_to_the_sweep_with_the_digest(tmp_path: Path) -> None:
    Store.open(tmp_path, write=True).save_sweep(SPEC, DIGEST)
    data = SPEC.data.model_copy(update={"digest": DIGEST})
    assert load_sweep(tmp_path / SWEEP_FILE) == SPEC.model_copy(update={"data": data})


def test_the_same_sweep_changes_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path, write=True)
    store.save_sweep(SPEC, DIGEST)
    before = files(tmp_path)
    store.save_sweep(SPEC, DIGEST)
    assert files(tmp_path) == before
    assert list(before) == [SWEEP_FILE]


def test_an_edited_sweep_is_kept_beside(tmp_path: Path) -> None:
    store = Store.open(tmp_path, write=True)
    store.save_sweep(SPEC, DIGEST)
    old = files(tmp_path)[SWEEP_FILE]
    store.save_sweep(EDITED, DIGEST)
    store.save_sweep(SPEC, DIGEST)
    store.save_sweep(EDITED, DIGEST)
    kept = f"sweep-{hashlib.blake2b(old).hexdigest()[:8]}.yaml"
    assert files(tmp_path)[kept] == old
    assert len(files(tmp_path)) == 3
    assert load_sweep(tmp_path / SWEEP_FILE).seeds == (0, 1, 2)
    assert load_sweep(tmp_path / kept).seeds == (0, 1)


def test_the_place_of_the_old_one_is_never_overwritten(tmp_path: Path) -> None:
    store = Store.open(tmp_path, write=True)
    (tmp_path / SWEEP_FILE).write_bytes(b"\xff by hand")
    name = hashlib.blake2b(b"\xff by hand").hexdigest()
    (tmp_path / f"sweep-{name[:8]}.yaml").write_text("another")
    store.save_sweep(SPEC, DIGEST)
    found = files(tmp_path)
    assert (found[f"sweep-{name[:8]}.yaml"], found[f"sweep-{name}.yaml"]) == (b"another", b"\xff by hand")
