"""A point with training data of its own: identity, length, what a stored sweep keeps, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_results import made
from sweep_text import SWEEP

from hpxfer.data import check_length, data_ref, open_data, point_keys, require_data
from hpxfer.driver import prepare
from hpxfer.errors import HpxferError
from hpxfer.plan.make import make_plan
from hpxfer.plan.point_data import data_lines
from hpxfer.plan.text import plan_text
from hpxfer.results import load_results
from hpxfer.spec import SweepSpec, load_sweep, parse_sweep
from hpxfer.spec.data import own_data
from hpxfer.store import Store
from hpxfer.trial import Expansion

LONG = "{width: 64, steps: 400, data: text:more.txt}"


def swept(folder: Path, *edits: tuple[str, str], long: str = LONG) -> SweepSpec:
    (folder / "few.txt").write_bytes(bytes(range(32, 96)) * 2000)
    (folder / "more.txt").write_bytes(bytes(range(32, 96))[::-1] * 4000)
    (folder / "held.txt").write_bytes(b"held out " * 300)
    text = SWEEP.replace("source: builtin:stdlib", "source: text:few.txt\n  validation: text:held.txt")
    text = text.replace("width: [32, 64]", f"width: [32, 64]\n  long: {{shapes: [{long}]}}")
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (folder / "s.yaml").write_text(text)
    return load_sweep(folder / "s.yaml")


def test_only_that_shape_trains_on_it(tmp_path: Path) -> None:
    spec = swept(tmp_path)
    (own,) = own_data(spec).values()
    assert own.source == f"text:{tmp_path}/more.txt"
    require_data(spec)
    check_length(spec)
    data = data_ref(spec.data, point_keys(spec))
    trials = list(Expansion(spec, data).trials())
    sources = {(trial.shape.steps, trial.setting.data_source, trial.setting.data_digest) for trial in trials}
    assert sources == {(200, spec.data.source, data.digest), (400, own.source, data.others[0][1])}
    assert len({trial.setting.validation_digest for trial in trials}) == 1
    (long,) = {trial.setting for trial in trials if trial.shape.steps == 400}
    assert open_data(long).num_tokens == 64 * 4000


def test_the_plan_says_which_shape_trains_on_what(tmp_path: Path) -> None:
    lines = data_lines(swept(tmp_path))
    assert [line.split(": ", 1)[0] for line in lines] == ["w64 d2 E4A1 h64 b512 t400", "all other shapes"]
    assert [Path(line).name for line in lines] == ["more.txt", "few.txt"]
    swept(tmp_path)
    job = prepare(tmp_path / "s.yaml", results=tmp_path / "results", executor="local")
    text = plan_text(make_plan(job.expansion, ()))
    assert all(f"data of {line}" in text.splitlines() for line in lines)
    assert data_lines(parse_sweep(SWEEP)) == ()


def test_a_stored_sweep_knows_all_digests(tmp_path: Path) -> None:
    swept(tmp_path)
    job = prepare(tmp_path / "s.yaml", results=tmp_path / "results", executor="local")
    store = Store.open(job.folder, write=True)
    store.save_sweep(job.spec, job.expansion.data.digest)
    store.append([made(next(iter(job.expansion.trials())))])
    ids = {trial.id for trial in job.expansion.trials()}
    for name in ("few", "more", "held"):
        (tmp_path / f"{name}.txt").unlink()
    again = prepare(job.folder / "sweep.yaml", results=tmp_path / "results", executor="local")
    assert {trial.id for trial in again.expansion.trials()} == ids
    assert {trial.id for trial in load_results(job.folder).expansion.trials()} == ids


@pytest.mark.parametrize(
    ("edits", "long", "message"),
    [
        ((("\n  validation: text:held.txt", ""),), LONG, r"axes\.long\.shapes\[0\]\.data: needs data\.validation, so"),
        ((), "{width: 64, steps: 400, data: x}", r"axes\.long\.shapes\[0\]\.data\.source: must be builtin:stdlib"),
        (
            (),
            "{width: 64, data: text:more.txt}",
            r"axes\.long\.shapes\[0\]: must have the data of axes\.width\.values\[1\], which",
        ),
        (
            (("text:held.txt", "text:held.txt\n  digest: ab\n  validation_digest: ab"),),
            LONG,
            r"data\.digest: must be given with data\.digest: all digests stand in for data, or none does",
        ),
    ],
)
def test_bad_input_is_named(tmp_path: Path, edits: tuple[tuple[str, str], ...], long: str, message: str) -> None:
    with pytest.raises(HpxferError, match=message):
        swept(tmp_path, *edits, long=long)


def test_data_that_is_too_short_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(HpxferError, match=r"at axes\.long\[0\]: must hold at least .* got 256000 at text:.*more\.txt"):
        check_length(swept(tmp_path, long="{width: 64, steps: 4000, data: text:more.txt}"))
    with pytest.raises(HpxferError, match=r"^axes\.long\.shapes\[0\]\.data\.source: must name data .*gone\.txt"):
        require_data(swept(tmp_path, long="{width: 64, steps: 400, data: text:gone.txt}"))


@pytest.mark.parametrize("form", ["long: {{shapes: [{}]}}", "long: [{}]"])
@pytest.mark.parametrize(
    ("long", "line", "key", "rule"),
    [
        ("{width: 64, steps: 400, data: text:gone.txt}", 18, "axes.long[0].data.source", "must name data on this"),
        (
            "{width: 64, steps: 40000, data: text:more.txt}",
            18,
            "axes.long[0].data.source",
            "or lower axes.long[0].steps (at most 499 fit), or training.batch_tokens",
        ),
        ("{width: 64, steps: 40000}", 7, "data.source", "or lower axes.long[0].steps (at most 249 fit), or training"),
    ],
)
def test_errors_name_the_keys_of_the_point(
    tmp_path: Path, form: str, long: str, line: int, key: str, rule: str
) -> None:
    """The key is spelled as the file has it."""
    swept(tmp_path, ("long: {shapes: [LONG]}", form.format(long)), long="LONG")
    with pytest.raises(HpxferError) as error:
        prepare(tmp_path / "s.yaml", results=tmp_path / "results", executor="local")
    spelled = key.replace("long[0]", "long.shapes[0]") if "shapes" in form else key
    assert f"s.yaml:{line}: {spelled}: " in str(error.value)
    assert rule in str(error.value)
