"""A progress.json with values of other types: one message, whatever the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import run_status, running_stack, shape_progress

from hpxfer.errors import HpxferError
from hpxfer.host.process import machine_id
from hpxfer.progress.file import FILE, read

STATUS = run_status(running=(running_stack(),), shapes=(shape_progress(),), notes=("a",), errors=("b",)).to_dict()
DATA = {
    "state": "running",
    "run": "r",
    "counter": 1,
    "host": "h",
    "pid": 1,
    "machine": machine_id(),
    "started": None,
    "progress": STATUS,
}
ODD: list[Any] = [{"values": 1}, [1], "text", 1e300, -1, True, 10**400, float("nan"), float("inf")]
# Fields of numbers that may be negative, and of texts.
OF_NUMBER = ("elapsed_s", "tokens_per_s", "eta_s", "best_loss", "loss_nats", "running_s")
OF_TEXT = ("best_text", "sweep", "reads", "id", "label", "host", "best")


def check_refused(folder: Path, data: Any) -> None:
    (folder / FILE).write_text(json.dumps(data))
    with pytest.raises(HpxferError, match=r"progress\.json: must (hold the progress|have version)") as error:
        read(folder)
    assert len(str(error.value)) < 400


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps(DATA))
    found = read(tmp_path)
    assert found is not None
    assert found.run_status.to_dict() == STATUS


@pytest.mark.parametrize("name", sorted(STATUS))
def test_every_field_of_the_status(tmp_path: Path, name: str) -> None:
    for odd in ODD:
        if not fits(name, odd, STATUS[name]):
            check_refused(tmp_path, {**DATA, "progress": {**STATUS, name: odd}})


@pytest.mark.parametrize("part", ["running", "shapes"])
def test_every_field_of_a_part(tmp_path: Path, part: str) -> None:
    (whole,) = STATUS[part]
    for name in whole:
        for odd in ODD:
            if not fits(name, odd, whole[name]):
                check_refused(tmp_path, {**DATA, "progress": {**STATUS, part: [{**whole, name: odd}]}})


@pytest.mark.parametrize("pid", [0, -1, 10**30, 1e400])
def test_a_process_that_cannot_be(tmp_path: Path, pid: float) -> None:
    check_refused(tmp_path, {**DATA, "pid": pid})


def fits(name: str, odd: Any, sound: Any) -> bool:
    """Return whether the value is legal there."""
    if name in OF_TEXT:
        return isinstance(odd, str)
    if name in ("notes", "errors"):
        return odd == "text" or isinstance(odd, dict)  # a tuple of its letters, or of its keys
    if name in OF_NUMBER:
        return odd == -1 and not isinstance(odd, bool)
    return odd is True and (isinstance(sound, bool) or name == "version")
