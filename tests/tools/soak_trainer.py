"""A trainer of a soak's own: two ranks, of which the second has a session of its own, as those of torchrun have.

    python soak_trainer.py CONFIG

The model is one number, and rank 1 computes its gradient. All is in float64 with one order of additions, so the losses
of a run that goes on from a checkpoint are those of an undisturbed run, bit for bit. It needs the standard library.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STEP_S = 0.005
EVERY = 20  # steps between checkpoints


def train(config: dict[str, Any]) -> None:
    """Train as rank 0, which alone reports."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, __file__, "--rank", str(theirs.fileno())]
    rank = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
    theirs.close()
    lines, out = ours.makefile("rw"), open(config["report_file"], "a", buffering=1)  # noqa: SIM115
    lr = config["hps"]["lr"] * (64 / config["shape"]["d_model"]) ** config["args"]["power"]
    state = {"step": -1, "weight": 1.0 + config["seed"] / 8, "draws": random.Random(config["seed"]).getstate()}
    if config["resume"]:
        state = json.loads(Path(config["resume"], "state.json").read_text())
        version, words, gauss = state["draws"]
        state["draws"] = (version, tuple(words), gauss)
    draws = random.Random()
    draws.setstate(state["draws"])
    weight = state["weight"]
    for step in range(state["step"] + 1, config["steps"]):
        time.sleep(STEP_S)
        lines.write(f"{weight.hex()} {draws.gauss(0.0, 0.1).hex()}\n")
        lines.flush()
        said = lines.readline()
        if not said:
            _rank_is_gone(rank)
        gradient, loss = map(float.fromhex, said.split())
        weight -= lr * gradient
        out.write(json.dumps({"type": "report", "step": step, "loss": loss}) + "\n")
        if not math.isfinite(loss):
            time.sleep(60)  # until it is ended
        if step % EVERY == EVERY - 1:
            path = _save(config, {"step": step, "weight": weight, "draws": draws.getstate()})
            out.write(json.dumps({"type": "checkpoint", "step": step, "path": str(path)}) + "\n")
    out.write(json.dumps({"type": "result", "status": "finished", "validation_loss": weight * weight}) + "\n")


def _save(config: dict[str, Any], state: dict[str, Any]) -> Path:
    """Write a checkpoint that is whole or not there. Remove all but the last two, and those that are not whole."""
    folder = Path(config["checkpoint_dir"])
    new = folder / f"step-{state['step']}"
    half = folder / f"half-{os.getpid()}"
    half.mkdir()
    (half / "state.json").write_text(json.dumps(state))
    shutil.rmtree(new, ignore_errors=True)
    half.rename(new)
    for other in folder.iterdir():
        if other.name.startswith("half-") or int(other.name.partition("-")[2]) < state["step"] - EVERY:
            shutil.rmtree(other)
    return new


def _rank_is_gone(rank: subprocess.Popen[bytes]) -> None:
    """End as torchrun does when a rank is gone: with exit code 1, and the reason in its error file."""
    rank.wait()
    error = {"message": {"message": "a rank is gone", "errorCode": rank.returncode}}
    Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(error))
    sys.exit(1)


def compute(number: int) -> None:
    """Be rank 1: read weight and noise, answer with gradient and loss.

    When rank 0 is gone it hangs, as ranks do that wait for others: whoever started it must end it.
    """
    lines = socket.socket(fileno=number).makefile("rw")
    for line in lines:
        weight, noise = map(float.fromhex, line.split())
        try:
            loss = weight * weight + abs(noise)
        except OverflowError:
            loss = math.inf
        lines.write(f"{(2 * weight + noise).hex()} {loss.hex()}\n")
        lines.flush()
    time.sleep(3600)


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        compute(int(sys.argv[2]))
    else:
        train(json.loads(Path(sys.argv[1]).read_text()))
