"""UserTrial: what `train(trial)` gets: the numbers, the recipe at its shape, its rank, and reports to write."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, SupportsFloat

# The public face, as user code imports it: this runs in the process of the user's training, and not in a driver.
import hpxfer
from hpxfer.errors import HpxferError, shown
from hpxfer.host import json_ready, sync_folder
from hpxfer.receipts import append, changes_since, digest, measure_sites, receipt, weights_of
from hpxfer.recipe import known_model, known_sites, unwrapped

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TrialRecipe:
    """What a recipe gives the trial's model: the methods of `hpxfer.Recipe`, at the trial's shape.

    `text` is that of a recipe file, `shape` has the dimensions of a Shape. Without `roles`, those of
    `hpxfer.roles(model)` are taken.
    """

    text: str
    shape: Mapping[str, int]

    @cached_property
    def recipe(self) -> hpxfer.Recipe:
        """The recipe itself, for its other methods."""
        return hpxfer.Recipe.parse(self.text, "config.json: recipe")

    def init_(
        self, model: torch.nn.Module, roles: Any = None, *, generator: torch.Generator | None = None
    ) -> torch.nn.Module:
        roles = hpxfer.roles(model) if roles is None else roles
        return self.recipe.init_(model, roles, self.shape, generator=generator)

    def param_groups(self, model: torch.nn.Module, roles: Any = None) -> list[dict[str, Any]]:
        return self.recipe.param_groups(model, hpxfer.roles(model) if roles is None else roles, self.shape)

    def attach(self, model: torch.nn.Module, sites: Any = None, *, by_hand: Collection[str] = ()) -> Any:
        return self.recipe.attach(model, self.shape, sites, by_hand=by_hand)

    def forward_multipliers(self) -> dict[str, float]:
        return self.recipe.forward_multipliers(self.shape)

    def scheduler(
        self, optimizer: torch.optim.Optimizer, factor: Callable[[int], float]
    ) -> torch.optim.lr_scheduler.LambdaLR:
        return self.recipe.scheduler(optimizer, factor)

    def check_lr_ratios(self, optimizer: torch.optim.Optimizer) -> float:
        return self.recipe.check_lr_ratios(optimizer)


_STEP = re.compile(r"step-[0-9]+|\.step-.*")
_ALIVE_S = 1.0  # `alive` may be called at each step: more lines than this say nothing


@dataclass(kw_only=True)
class UserTrial:
    """One trial, as the config says it. Only rank 0 writes; on other ranks reports do nothing."""

    trial_id: str
    attempt: int
    steps: int
    checkpoint_dir: Path
    report_file: Path
    shape: Mapping[str, Any] = field(default_factory=dict)  # the user's own
    base_shape: Mapping[str, Any] | None = None
    hps: Mapping[str, float] = field(default_factory=dict)
    args: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    batch_tokens: int | None = None
    schedule: Mapping[str, Any] = field(default_factory=dict)
    roles: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # role -> its numbers at this shape
    recipe: TrialRecipe | None = None  # None: the parameterization is the user's own
    resume: Path | None = None  # the newest whole checkpoint
    config: Mapping[str, Any] = field(default_factory=dict)  # all of config.json
    rank: int = 0
    world: int = 1
    _alive_at: float = field(default=0.0, repr=False)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> UserTrial:
        """Return the trial of a config, for this rank, which torchrun and accelerate say in variables."""
        known = {each.name for each in fields(cls)}
        given: dict[str, Any] = {name: value for name, value in config.items() if name in known and value is not None}
        given |= {name: Path(given[name]) for name in ("checkpoint_dir", "report_file", "resume") if name in given}
        given |= {"recipe": TrialRecipe(**given["recipe"])} if "recipe" in given else {}
        given |= {"rank": int(os.environ.get("RANK", 0)), "world": int(os.environ.get("WORLD_SIZE", 1))}
        return cls(**given, trial_id=config["trial"], config=config)

    @property
    def is_check(self) -> bool:
        """Whether this is a short trial of `hpxfer check --trainer`."""
        return self.config.get("check") is True

    def report(self, step: int, loss: SupportsFloat, **metrics: SupportsFloat) -> None:
        """Report the loss of a step, and other numbers by name. Steps must grow, and the last one must be among them.

        A loss that is not finite ends the trial: it has diverged.
        """
        if self.rank == 0:
            self._write("report", step=int(step), **_numbers({"loss": loss, **metrics}))

    def alive(self) -> None:
        """Say that the training works on where nothing is reported for long, e.g. during an evaluation."""
        if time.monotonic() - self._alive_at >= _ALIVE_S:
            self._alive_at = time.monotonic()
            self._write("alive")

    def diverged(self, step: int) -> NoReturn:
        """Declare that the training has diverged at a step, and end this process."""
        self._write("result", status="diverged", step=int(step))
        raise SystemExit(0)

    def groups(
        self,
        step: int,
        groups: Iterable[Mapping[str, Any]],
        *,
        changes: Mapping[str, float] | None = None,
        batch: str | None = None,
    ) -> None:
        """Report what the optimizer holds as plain data, one entry per parameter: `hpxfer.receipt(model, optimizer)`.

        `changes` are name -> RMS of the change by the update of this step, and `batch` is a hash of its batch.
        """
        entries = [json_ready(dict(group)) for group in groups]
        self._write("groups", step=int(step), groups=entries, changes=changes and dict(changes), batch=batch)

    def forward(self, step: int, outputs: Iterable[Mapping[str, Any]]) -> None:
        """Report outputs at the sites of multipliers, each `{"key", "mode", "with", "without"}`, see `watch`."""
        self._write("forward", step=int(step), outputs=[json_ready(dict(each)) for each in outputs])

    def watch(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
        roles: Any = None,
        *,
        sites: Any = None,
    ) -> None:
        """Report all that `hpxfer check --trainer` asks of a torch training. In other trials this does nothing.

        Call it once, when model and optimizer are wrapped and before the first step; under torchrun on all ranks.

        Args:
            model, optimizer: of torch; several optimizers if the training has several.
            roles: pairs of a pattern of parameter names and a role, as for `recipe.init_`.
            sites: pairs of a pattern of module names and a key, as for `recipe.attach`. Multipliers that the model
                applies by itself are no sites: report them with `forward`.
        """
        if self.is_check:
            _watch(self, model, optimizer, roles, sites)

    def result(self, values: Mapping[str, SupportsFloat]) -> None:
        """Report that the training has finished. `hpxfer` calls it with what `train` returns."""
        if self.rank == 0:
            named = {"validation_loss" if name == "validation" else name: value for name, value in values.items()}
            self._write("result", **{**_numbers(named), "status": "finished"})

    @contextmanager
    def checkpoint(self, step: int) -> Iterator[Path]:
        """Give an empty folder, and make it the newest checkpoint when the block ends.

        All ranks must enter it, and may write files of different names. A checkpoint is whole or not there; the one
        before is removed then. If the block raises, nothing changes. Raises HpxferError with several ranks if
        torch.distributed is not initialized.
        """
        final, half = (self.checkpoint_dir / name for name in (f"step-{int(step)}", f".step-{int(step)}.tmp"))
        if self.rank == 0:
            _remove(self.checkpoint_dir, lambda name: name.startswith("."))
            half.mkdir(parents=True)
        self._barrier()
        try:
            yield half
            self._barrier()
            if self.rank == 0:
                for parent, _, files in os.walk(half):
                    for name in files:
                        with open(os.path.join(parent, name), "rb") as file:
                            os.fsync(file.fileno())
                    sync_folder(Path(parent))
                if final.exists():  # written before a resume
                    os.replace(final, final.with_name(f".{final.name}.old"))
                os.replace(half, final)
                sync_folder(final.parent)
                self._write("checkpoint", step=int(step), path=str(final))
                _remove(self.checkpoint_dir, lambda name: bool(_STEP.fullmatch(name)) and name != final.name)
        except BaseException:
            if self.rank == 0:
                shutil.rmtree(half, ignore_errors=True)
            raise

    def _write(self, kind: str, /, **values: Any) -> None:
        """Append a line, if this is the rank that speaks. What is None is left out."""
        given = {name: value for name, value in values.items() if value is not None}
        ours = {"trial": self.trial_id, "attempt": self.attempt, "time": time.time()}
        try:
            if self.rank == 0:
                append(self.report_file, {"type": kind, **given, **ours})
        except (TypeError, ValueError) as error:
            raise HpxferError(f"trial.{kind}: must be plain data (texts, numbers, lists): {error}") from None

    def _barrier(self) -> None:
        """Wait until all ranks are here. Raise HpxferError if they cannot."""
        distributed = sys.modules.get("torch.distributed")
        if self.world > 1 and (distributed is None or not distributed.is_initialized()):
            raise HpxferError(
                f"trial.checkpoint: {self.world} ranks must be able to wait for each other, got no process group; call "
                f"torch.distributed.init_process_group() first"
            )
        if self.world > 1:
            distributed.barrier()  # type: ignore[union-attr]


def _numbers(values: Mapping[str, SupportsFloat]) -> dict[str, float]:
    out = {}
    for name, value in values.items():
        try:
            out[name] = float(value)
        except (TypeError, ValueError):
            raise HpxferError(f"trial.report: {name}: must be a number, got {shown(value)}") from None
    return out


def _remove(folder: Path, which: Callable[[str], bool]) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        if which(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _watch(
    trial: UserTrial,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    roles: Any,
    sites: Any,
) -> None:
    """Report the receipt of the start, and add hooks that report the rest.

    Receipts are of a step of the warm-up, the peak, the middle and the last one, and of the first update with an LR
    above 0.
    """
    optimizers = list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]
    roles = hpxfer.roles(model) if roles is None and trial.recipe is not None else roles
    warmup = int(trial.schedule.get("warmup_steps") or 0)
    reported = {warmup // 2, warmup, trial.steps // 2, trial.steps - 1}
    step, has_changed = 0, False  # updates so far
    weights: Mapping[str, torch.Tensor] | None = None
    batch: str | None = None  # a hash of the first batch

    def see_batch(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal batch
        batch = digest([*args, *kwargs.values()])
        handle.remove()

    def before(*_: Any) -> None:
        nonlocal weights
        rates = (float(group["lr"]) for each in optimizers for group in each.param_groups)
        if not has_changed and any(rate > 0 for rate in rates):
            weights = weights_of(model)

    def after(*_: Any) -> None:
        nonlocal weights, has_changed, step
        changes = None if weights is None else changes_since(model, weights)
        weights, has_changed = None, has_changed or changes is not None
        if changes is not None or step in reported:
            trial.groups(step, receipt(model, optimizers, roles), changes=changes, batch=batch)
        step += 1

    trial.groups(0, receipt(model, optimizers, roles, init=True))
    optimizers[0].register_step_pre_hook(before)
    optimizers[-1].register_step_post_hook(after)
    handle = unwrapped(model).register_forward_pre_hook(see_batch, with_kwargs=True)
    keys = {} if trial.recipe is None else trial.recipe.forward_multipliers()
    if sites is None and keys and known_model(model) is not None:
        sites = known_sites(model, keys)
    if sites is not None:
        measure_sites(model, sites, lambda output: trial.forward(step, [output]))
