"""Write the follow-up sweep, with a comment that says how to run it so that no trial is run twice."""

from __future__ import annotations

from pathlib import Path

from hpxfer.analysis import FollowUp
from hpxfer.errors import HpxferError
from hpxfer.results import Results
from hpxfer.storage.uri import spelled

DEFAULT_ROOT = "results"  # of `hpxfer run`, where the sweep names no storage


def write_follow_up(results: Results, found: FollowUp, path: Path) -> str:
    """Write a follow-up that there is to a new file. Return what it adds at what cost, and the next step.

    Raise HpxferError if the file cannot be written.
    """
    assert found.yaml is not None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(_how_to_run(results, found, path) + found.yaml)
    except OSError as error:
        raise HpxferError(f"{path}: cannot be written: {error.strerror}; name another file") from None
    rename = _rename(results)
    default = results.spec.storage or Path(DEFAULT_ROOT).resolve()
    elsewhere = "" if _root(results) == str(default).rstrip("/") else f" --results {_root(results)}"
    return "\n".join(
        [
            f"{path} adds to the sweep: {'; '.join(found.added)}.",
            *(f"To be added by hand: {addition}" for addition in found.not_added),
            f"Next: {f'{rename}; then: ' if rename else ''}hpxfer run {path}{elsewhere}",
        ]
    )


def _how_to_run(results: Results, found: FollowUp, path: Path) -> str:
    """Return the comment on top of a follow-up: what it adds, and how to run it."""
    lines = [f"Adds to sweep {results.spec.name}: {'; '.join(found.added)}."]
    lines += [f"To be added by hand: {addition}" for addition in found.not_added]
    if rename := _rename(results):
        lines.append(f"First {rename}, so that its trials are found.")
    lines.append(f"To train only what is new: hpxfer run {path} --results {_root(results)}")
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)


def _rename(results: Results) -> str:
    """Return how the results folder must be renamed so that a run of the sweep finds it; empty if a run finds it."""
    folder, name = _where(results), results.spec.name
    return "" if folder.rpartition("/")[2] == name else f"rename the results folder {folder} to {name}"


def _root(results: Results) -> str:
    """Return the folder or URI that holds the results folder."""
    return _where(results).rpartition("/")[0] or "/"


def _where(results: Results) -> str:
    """Return the results folder as an absolute path, or as the URI that it is the mirror of."""
    given = str(results.folder)
    return str(results.folder.resolve()) if spelled(given) == given else spelled(given)
