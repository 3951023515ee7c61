"""Two drivers of one sweep: one is refused, or loses its lease, and no trial is trained twice."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from driver_cases import Made, trained
from lease_holder import holder_of
from tiny import write_tiny

from hpxfer.driver import prepare, run
from hpxfer.errors import HpxferError
from hpxfer.storage import lease
from hpxfer.storage.lease import Holder, encoded
from hpxfer.storage.lease_file import LEASE_FILE, LeaseFile
from hpxfer.store import Store


def test_a_driver_that_loses_its_lease_stops_and_writes_nothing(tmp_path: Path) -> None:
    sweep = write_tiny(tmp_path, ("workers: 2", "workers: 2, stack_size: 5"))
    folder, events = tmp_path / "tiny", 0

    def steal(*_: object) -> None:
        nonlocal events
        events += 1
        if events == 3:  # progress and results of the first stack, and progress of the second
            (folder / LEASE_FILE).write_bytes(encoded(Holder(nonce="x", host="elsewhere", pid=42)))

    with pytest.raises(HpxferError, match="was taken over by process 42 on host elsewhere"):
        run(sweep, results=tmp_path, executor=Made(), on_event=steal)
    assert len(Store.open(folder, write=False).done_ids()) == 5
    holder = holder_of(folder)
    assert holder is not None
    assert holder.nonce == "x"


def test_a_second_driver_is_refused_and_the_first_is_not_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "POLL_S", 0.01)
    sweep = write_tiny(tmp_path)
    refused: list[str] = []

    def second(*_: object) -> None:
        if not refused:
            holder = holder_of(tmp_path / "tiny")
            assert holder is not None
            moved = encoded(replace(holder, counter=5))
            with pytest.raises(HpxferError) as error:
                run(
                    sweep,
                    results=tmp_path,
                    executor=Made(),
                    on_wait=lambda _: lease_storage.swap(encoded(holder), moved),
                )
            refused.append(str(error.value))

    lease_storage = LeaseFile(tmp_path / "tiny")
    executor = Made()
    run(sweep, results=tmp_path, executor=executor, on_event=second)
    assert f"in use by process {os.getpid()} on host" in refused[0]
    assert trained(executor) == 30


def test_what_another_driver_did_meanwhile_is_not_done_again(tmp_path: Path) -> None:
    sweep = write_tiny(tmp_path)
    job = prepare(sweep, results=tmp_path)
    run(sweep, results=tmp_path, executor=Made())
    late = Made()
    run(job, executor=late)
    assert late.given == []
