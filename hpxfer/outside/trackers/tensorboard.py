"""The runs of a folder of TensorBoard's event files: one per folder that holds some, every point of each tag.

HPs are those of the HParams plug-in, if the trainer wrote them. Otherwise `--pattern` reads them from a folder's name.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.host import library
from hpxfer.outside.trackers.logged import LoggedRun, Point, reading

EVENTS = "*tfevents*"
# TensorBoard keeps a sample of 10,000 points per tag, unless told otherwise; 0 keeps all.
KEEP_ALL = {"scalars": 0, "tensors": 0}
_STATES = {"STATUS_SUCCESS": "finished", "STATUS_FAILURE": "failed"}


def tensorboard_runs(folder: str) -> list[LoggedRun]:
    """Return the runs below a folder. Raise HpxferError if it is none, or if a run cannot be read."""
    root = Path(folder)
    if not root.is_dir():
        raise HpxferError(f"tensorboard:{root}: must be a folder with event files below it")
    folders = sorted({file.parent for file in root.rglob(EVENTS)})
    return [_run(each, each.relative_to(root).as_posix()) for each in folders]


def _run(folder: Path, name: str) -> LoggedRun:
    accumulator = library("tensorboard.backend.event_processing.event_accumulator", "tensorboard")
    with reading(f"{folder}: TensorBoard cannot read it"):
        events = accumulator.EventAccumulator(str(folder), size_guidance=KEEP_ALL, purge_orphaned_data=False)
        events.Reload()
        tags = events.Tags()
        config, state = _hparams(events)
    metrics = dict.fromkeys(tag for tag in (*tags["scalars"], *tags["tensors"]) if not tag.startswith("_hparams_"))
    points = partial(_points, events)
    return LoggedRun(id=name, name=name, config=config, state=state, metrics=tuple(metrics), points=points)


def _points(events: Any, metric: str) -> list[Point]:
    """Return every point of a tag, which older writers store as a scalar and newer ones as a tensor of one number."""
    tags = events.Tags()
    if metric in tags["scalars"]:
        return [Point(at.step, at.value, at.wall_time) for at in events.Scalars(metric)]
    arrays = library("tensorboard.util.tensor_util", "tensorboard")
    tensors = events.Tensors(metric) if metric in tags["tensors"] else ()
    pairs = [(at, arrays.make_ndarray(at.tensor_proto)) for at in tensors]
    numbers = [(at, array) for at, array in pairs if array.size == 1 and array.dtype.kind in "fiu"]
    return [Point(at.step, float(array.item()), at.wall_time) for at, array in numbers]


def _hparams(events: Any) -> tuple[dict[str, Any], str]:
    """Return the HPs and how the run ended, as the HParams plug-in has them; nothing and `unknown` without it."""
    metadata = library("tensorboard.plugins.hparams.metadata", "tensorboard")
    plugin, api = (library(f"tensorboard.plugins.hparams.{name}_pb2", "tensorboard") for name in ("plugin_data", "api"))
    config, state = dict[str, Any](), "unknown"
    try:
        contents = events.PluginTagToContent(metadata.PLUGIN_NAME)
    except KeyError:
        return config, state
    for data in map(plugin.HParamsPluginData.FromString, contents.values()):
        for name, value in data.session_start_info.hparams.items():
            kind = value.WhichOneof("kind")
            config[name] = None if kind is None else getattr(value, kind)
        if data.HasField("session_end_info"):
            state = _STATES.get(api.Status.Name(data.session_end_info.status), "unknown")
    return config, state
