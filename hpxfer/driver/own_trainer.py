"""A user's own trainer in a run: who trains its trials, and where their folders lie."""

from __future__ import annotations

import json
from pathlib import Path

from hpxfer.driver.prepared import RESULTS, PreparedSweep
from hpxfer.driver.user_command import scanned_multipliers
from hpxfer.trainer.own_code import code_of, sent_files
from hpxfer.trainer.train_user import TrainUser

RUNS = "runs"


def train_user(prepared: PreparedSweep) -> TrainUser:
    """Return what trains the trials of a sweep with a trainer of the user's own."""
    spec, resources = prepared.spec, prepared.spec.resources
    assert spec.trainer is not None
    remote = prepared.location.is_remote
    # A folder of a trial is written by programs that know no object storage.
    root = Path(RESULTS, spec.name).absolute() if remote else prepared.folder.absolute()
    return TrainUser(
        trainer=spec.trainer,
        sweep=spec.name,
        runs=str(root / RUNS),
        multipliers=scanned_multipliers(spec),
        judged=spec.judge.loss,
        gpus_on_node=resources.gpus_on_node,
        nodes=resources.nodes,
        curves=resources.curves == "all",
        provenance=json.dumps(code_of(spec)),
        sent=sent_files(spec.trainer),
    )
