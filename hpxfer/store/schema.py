"""The schema: every column of the tables `trials` and `curves`, with its unit. A missing value is null, never 0.

The metadata of each field holds its unit and a description, so every file has them. The unit `1` is a pure number,
`text` a name, `JSON` canonical JSON. Losses are cross entropy in nats, or the squared error that a sweep trains with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pyarrow as pa

from hpxfer.scaling.shape import Shape

# Raise it with every change of a column. A file of another version is refused.
SCHEMA_VERSION = 8
VERSION_KEY = b"hpxfer.schema"


def _field(name: str, kind: pa.DataType, unit: str, doc: str, *, null: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=null, metadata={b"unit": unit.encode(), b"description": doc.encode()})


def _schema(*fields: pa.Field) -> pa.Schema:
    return pa.schema(fields, metadata={VERSION_KEY: str(SCHEMA_VERSION).encode()})


# The fields of a Shape.
SHAPE_COLUMNS = tuple(dim.name for dim in fields(Shape))
# Parts of the setting that only the built-in families, or only a user's own trainer, have -> what null stands for.
UNKNOWN_SETTING = {"context": 1, "vocab_size": 0, "tokenizer": "none", "trainer": ""}
# Columns that files lack which were written before them -> what that stands for.
ADDED = {"adamw_lr": 0.0}
UNKNOWN_DIMS = {"own": "", "num_groups": 1}  # what null stands for, where it is not 0


def shape_of_row(row: Mapping[Any, Any]) -> Shape:
    """Return the shape of a stored trial. Its row may come from pandas, where null is NaN."""

    def value(name: str) -> Any:
        found = row[name]
        if found is None or found != found:  # NaN
            return UNKNOWN_DIMS.get(name, 0)
        return str(found) if name == "own" else int(found)

    return Shape(**{name: value(name) for name in SHAPE_COLUMNS})


_TEXT = pa.string()
_INT = pa.int64()
_FLOAT = pa.float64()
# Few distinct strings in many rows. Readers get them as a dictionary (in pandas, a categorical).
_NAME = pa.dictionary(pa.int32(), pa.string())

TRIALS = _schema(
    _field("trial_id", _TEXT, "text", "hash of everything that determines the trial's numbers"),
    _field("parameterization", _TEXT, "text", "table by name; null at the base shape, where all agree", null=True),
    _field("conventions", _TEXT, "JSON", "the table's conventions, all spelled out", null=True),
    _field("own", _TEXT, "JSON", "shape of a user's own trainer, in its words", null=True),
    _field("width", _INT, "1", "features of the residual stream", null=True),
    _field("depth", _INT, "1", "blocks", null=True),
    _field("num_experts", _INT, "1", "experts of a MoE layer; 0 for a dense model", null=True),
    _field("num_active", _INT, "1", "routed experts that a token uses", null=True),
    _field("expert_width", _INT, "1", "hidden features of one routed expert", null=True),
    _field("head_dim", _INT, "1", "features of one attention head", null=True),
    _field("num_heads", _INT, "1", "attention heads; 0 for width / head_dim"),
    _field("kv_heads", _INT, "1", "heads of keys and values; 0 for as many as heads"),
    _field("num_shared", _INT, "1", "experts of a MoE layer that every token uses", null=True),
    _field("shared_width", _INT, "1", "hidden features of one shared expert", null=True),
    _field("num_groups", _INT, "1", "groups of experts, in each of which as many are chosen", null=True),
    _field("dense_width", _INT, "1", "hidden features of a dense FFN; 0 if no block has one", null=True),
    _field("base_shape", _TEXT, "JSON", "the shape, with batch and steps, that the HPs belong to"),
    _field("lr", _FLOAT, "1", "base HP: peak learning rate"),
    _field("adamw_lr", _FLOAT, "1", "base HP: under Muon, peak learning rate of what AdamW moves; else 0"),
    _field("init_scale", _FLOAT, "1", "base HP: factor on the init std that init_scale_of names"),
    _field("residual_scale", _FLOAT, "1", "base HP: factor on every residual branch"),
    _field("weight_decay", _FLOAT, "1", "base HP: weight decay"),
    _field("eps", _FLOAT, "1", "base HP: Adam's eps"),
    _field("beta1", _FLOAT, "1", "base HP: Adam's beta1"),
    _field("beta2", _FLOAT, "1", "base HP: Adam's beta2"),
    _field("momentum", _FLOAT, "1", "base HP: momentum of SGD or Muon"),
    _field("router_bias_lr", _FLOAT, "1", "base HP: rate of the expert balancing rule"),
    _field("aux_weight", _FLOAT, "1", "base HP: weight of the balancing loss"),
    _field("z_weight", _FLOAT, "1", "base HP: weight of the router's z-loss"),
    _field("multipliers", _TEXT, "JSON", "base HPs: lr_mult, init_mult and forward_mult of roles that are not 1"),
    _field("resolved", _TEXT, "JSON", "what the HPs come to at this shape: roles, globals and structure"),
    _field("seed", _INT, "1", "seed of the init and of the order of the data"),
    _field("context", _INT, "tokens", "length of a sequence", null=True),
    _field("vocab_size", _INT, "tokens", "size of the vocabulary", null=True),
    _field("tokenizer", _TEXT, "text", "tokenizer of the data", null=True),
    _field("data_digest", _TEXT, "text", "hash of the data"),
    _field("batch_tokens", _INT, "tokens", "tokens of one step"),
    _field("steps", _INT, "1", "training steps"),
    _field("optimizer", _TEXT, "text", "adamw, sgd or muon, with its options"),
    _field("precision", _TEXT, "text", "type that the model computes in"),
    _field("trainer", _TEXT, "JSON", "entry, code and args of a user's own trainer", null=True),
    _field("plugins", _TEXT, "JSON", "kind:name -> digest of what the trial uses of plug-ins", null=True),
    _field("setting", _TEXT, "JSON", "what else of model and training determines the trial's numbers"),
    _field("params_total", _INT, "1", "parameters", null=True),
    _field("params_active", _INT, "1", "parameters that one token uses", null=True),
    _field("status", _TEXT, "text", "finished, diverged (a result too), stopped early, or failed (it runs again)"),
    _field("final_window_loss_nats", _FLOAT, "nats", "mean training loss over the last window of steps", null=True),
    _field("validation_loss_nats", _FLOAT, "nats", "loss on the held-out tokens after the last step", null=True),
    _field("validation_error", _FLOAT, "1", "share of the held-out samples: wrong class", null=True),
    _field("validation_top5_error", _FLOAT, "1", "share of them: class not among the first five", null=True),
    _field("loss_name", _TEXT, "text", "what a user's own trainer calls its loss", null=True),
    _field("loss_unit", _TEXT, "text", "unit of its losses; null: nats, as the columns say", null=True),
    _field("diverged_step", _INT, "1", "first step whose loss was not finite or blew up", null=True),
    _field("last_finite_loss_nats", _FLOAT, "nats", "training loss of the step before that", null=True),
    _field("error", _TEXT, "text", "what stopped a failed trial", null=True),
    _field("error_kind", _TEXT, "text", "why: bug, input, memory, timeout or lost (its worker)", null=True),
    _field("wall_s", _FLOAT, "s", "time of the whole stack that the trial was trained in", null=True),
    _field("tokens_per_s", _FLOAT, "tokens/s", "training tokens of the whole stack over wall_s", null=True),
    _field("peak_bytes", _INT, "bytes", "peak memory: of the process (CPU) or of the device (CUDA)", null=True),
    _field("stack_size", _INT, "1", "trials in the stack", null=True),
    _field("halvings", _INT, "1", "how often the stack was cut in half for lack of memory", null=True),
    _field("resumes", _INT, "1", "how often it went on from a checkpoint", null=True),
    _field("attempts", _INT, "1", "how often a user's own trainer was started", null=True),
    _field("num_gpus", _INT, "1", "GPUs that a trial of it had, on all nodes", null=True),
    _field("num_nodes", _INT, "1", "nodes that a trial of it had", null=True),
    _field("provenance", _TEXT, "JSON", "commit and packages of its code", null=True),
    _field("device", _TEXT, "text", "what it was trained on", null=True),
    _field("cpu", _TEXT, "text", "name and instructions of the CPU, if that is the device", null=True),
    _field("determinism", _TEXT, "text", "strict: the same bits in every stack; fast: not promised", null=True),
    _field("backend", _TEXT, "text", "what computed the kernels: torch or triton", null=True),
    _field("backend_reason", _TEXT, "text", "why that one", null=True),
    _field("kernel_configs", _TEXT, "text", "hash of the kernels' launch configurations", null=True),
    _field("trainer_version", _INT, "1", "what the trainer computed; part of trial_id"),
    _field("host", _TEXT, "text", "the machine's name", null=True),
    _field("versions", _TEXT, "JSON", "versions of hpxfer, torch and python", null=True),
    _field("finished_at", _TEXT, "UTC", "when the trial ended, ISO 8601", null=True),
)

CURVES = _schema(
    _field("trial_id", _NAME, "text", "the trial, as in trials"),
    _field("metric", _NAME, "text", "what was measured; a unit, if it has one, ends the name"),
    _field("layer", pa.int16(), "1", "block, from 0; null for the whole model", null=True),
    _field("role", _NAME, "text", "role of the tensors; null for the whole model", null=True),
    _field("step", pa.int32(), "1", "training step"),
    _field("value", _FLOAT, "as the metric says", "value of the metric"),
)
