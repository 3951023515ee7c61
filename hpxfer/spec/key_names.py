"""Key names: which key of a sweep file a wrong one stands for, by its letters and by what others call the same."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from hpxfer.errors import MAX_SHOWN, nearest, shown
from hpxfer.spec.yaml_file import KeyPath, spell

# The likeness of two names from which one is meant by the other: of a key of the same section, and of any other key.
# Below it, chance alone makes names alike.
_ALIKE, _ALIKE_ELSEWHERE = 0.7, 0.85

# Key -> what other trainers, configs of models and papers call it. Where a name may stand for two keys, both have it.
_OTHER_NAMES = {
    "name": "sweep_name run_name experiment experiment_name title",
    "model.base.width": "hidden_size d_model n_embd n_embed dim hidden_dim model_dim embed_dim embedding_dim emb_dim",
    "model.base.depth": "n_layers n_layer num_layers num_layer num_hidden_layers layers n_blocks num_blocks",
    "model.base.head_dim": "head_size d_head dim_head kv_channels head_width size_per_head",
    "model.base.num_heads": "n_heads n_head heads nhead num_attention_heads attention_heads",
    "model.base.kv_heads": "n_kv_heads n_kv_head num_kv_heads num_key_value_heads num_query_groups",
    "model.base.num_experts": "n_experts num_local_experts n_routed_experts num_routed_experts num_moe_experts experts "
    "moe_num_experts",
    "model.base.num_active": "top_k topk k num_experts_per_tok num_experts_per_token experts_per_token moe_top_k "
    "moe_router_topk n_active active_experts num_selected_experts",
    "model.base.expert_width": "moe_intermediate_size expert_size expert_dim d_expert moe_ffn_hidden_size "
    "intermediate_size d_ff ffn_dim ffn_hidden_size",
    "model.base.dense_width": "intermediate_size d_ff ffn_dim ffn_hidden_size n_inner mlp_dim",
    "model.base.expert_ratio": "mlp_ratio ffn_ratio ffn_mult expansion expansion_factor alpha_ffn",
    "model.base.dense_ratio": "mlp_ratio ffn_ratio ffn_mult expansion expansion_factor",
    "model.base.num_shared": "n_shared_experts num_shared_experts shared_experts",
    "model.base.shared_width": "shared_expert_intermediate_size moe_shared_expert_intermediate_size",
    "model.base.num_groups": "n_group num_expert_groups n_expert_groups",
    "model.top_groups": "topk_group",
    "model.context": "seq_len seqlen seq_length sequence_length block_size max_seq_len max_sequence_length "
    "max_position_embeddings context_length context_size context_window n_ctx n_positions max_length ctx_len",
    "model.gate": "router gating scoring_func score_function router_type moe_router_score_function",
    "model.route_scale": "routed_scaling_factor moe_router_topk_scaling_factor",
    "model.ffn": "activation act act_fn hidden_act activation_function mlp_type ffn_type",
    "model.positions": "rope pos_emb position_embedding position_embedding_type positional_encoding",
    "model.rope_theta": "rope_base rotary_base",
    "model.rope_share": "partial_rotary_factor rotary_pct rotary_percent",
    "model.tied_embeddings": "tie_word_embeddings tie_embeddings tie_weights weight_tying share_embeddings",
    "model.norm": "norm_type normalization",
    "model.norm_eps": "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_epsilon",
    "model.biases": "bias use_bias mlp_bias add_bias_linear",
    "model.qkv_biases": "attention_bias qkv_bias add_qkv_bias",
    "model.matrix_std": "init_std initializer_range init_method_std",
    "model.moe_every": "moe_layer_freq decoder_sparse_step moe_frequency",
    "model.dense_first": "first_k_dense_replace",
    "data.source": "dataset dataset_name data_path data_dir train_data corpus",
    "data.epochs": "num_epochs n_epochs max_epochs num_train_epochs",
    "data.vocab_size": "n_vocab num_embeddings padded_vocab_size",
    "training.batch_tokens": "batch_size global_batch_size train_batch_size total_batch_size batch bsz",
    "training.batch_samples": "batch_size global_batch_size train_batch_size total_batch_size batch bsz",
    "training.steps": "max_steps num_steps n_steps total_steps train_steps num_train_steps max_iters train_iters iters "
    "iterations num_iterations updates",
    "training.tokens": "max_tokens train_tokens total_tokens num_tokens",
    "training.optimizer": "optim optimizer_name optimizer_type",
    "training.betas": "beta1 beta2 b1 b2 adam_beta1 adam_beta2 adam_betas",
    "training.eps": "epsilon adam_eps adam_epsilon optimizer_eps",
    "training.weight_decay": "wd decoupled_weight_decay",
    "training.gradient_clip": "grad_clip clip clip_grad clip_grad_norm grad_clip_norm gradient_clipping max_grad_norm "
    "gradient_clip_val",
    "training.schedule.decay": "lr_scheduler lr_schedule scheduler lr_scheduler_type lr_decay lr_decay_style",
    "training.schedule.warmup": "warmup_steps warmup_iters warmup_ratio warmup_fraction warmup_tokens num_warmup_steps "
    "lr_warmup_steps",
    "training.schedule.final_fraction": "min_lr min_lr_ratio final_lr lr_min",
    "training.accumulation_tokens": "gradient_accumulation_steps grad_accum grad_accumulation accumulation_steps "
    "accumulate_grad_batches",
    "training.validation_tokens": "val_tokens eval_tokens val_size eval_size validation_size eval_iters",
    "parameterizations": "scaling mup scaling_rules parametrizations",
    "axes": "shapes scales sizes dimensions",
    "hps.lr": "learning_rate lrate base_lr max_lr peak_lr lr_max eta",
    "hps.init_scale": "init_gain",
    "hps.aux_weight": "aux_loss aux_loss_coef aux_loss_weight aux_loss_alpha router_aux_loss_coef moe_aux_loss_coeff "
    "load_balance_loss load_balancing_weight",
    "hps.z_weight": "z_loss z_loss_weight z_loss_coef router_z_loss_coef moe_z_loss_coeff",
    "grid": "search_space space param_grid params parameters hparams hyperparameters hyperparams sweep",
    "seeds": "seed num_seeds n_seeds random_seed repeats num_repeats replicates",
    "judge.loss": "metric objective",
    "search.budget": "trials num_trials n_trials num_samples",
    "precision": "dtype torch_dtype bf16 fp16 mixed_precision param_dtype compute_dtype",
    "resources.workers": "num_workers n_jobs parallel num_processes",
    "resources.gpus_per_stack": "gpus num_gpus n_gpus",
    "resources.micro_batch_tokens": "micro_batch_size microbatch device_batch_size per_device_train_batch_size",
    "resources.loggers": "logging logger report_to tracker wandb",
    "storage": "output_dir out_dir results_dir save_dir",
}
_KEYS: dict[str, list[str]] = {}  # another name -> keys
for _key, _names in _OTHER_NAMES.items():
    for _name in _names.split():
        _KEYS.setdefault(_name, []).append(_key)


def which_key(name: str, model: type[BaseModel], section: KeyPath, legal: Sequence[str]) -> str:
    """Return the fix for an unknown key of a section: the key that is meant, with its path unless it is of the section.

    `model` is the section that is the whole file, and `legal` are the keys of the section with the wrong one.
    """
    if "." in name and section[-1:] == ("hps",):
        return f"write it as {spell(section)}.multipliers.{name}"
    written = _written(name)
    # An arm has few keys, and most of the others cannot differ between arms.
    homes = [] if section[:1] == ("parameterizations",) else list(_homes(model))
    if found := _called(written, homes, section, legal):
        return _did_you_mean(found, section)
    of_name = [home for home in homes if home[-1] == written and home[:-1] != section]
    if of_name and written not in legal:
        least = min(map(len, of_name))
        return f"write it as {' or '.join(spell(home) for home in of_name if len(home) == least)}"
    elsewhere = {str(home[-1]): [home] for home in reversed(homes)}  # of two homes the first
    elsewhere |= {other: paths for other in _KEYS if (paths := _called(other, homes, section, legal))}
    for names, alike in (({key: [(*section, key)] for key in legal}, _ALIKE), (elsewhere, _ALIKE_ELSEWHERE)):
        if close := difflib.get_close_matches(written[:MAX_SHOWN], names, n=1, cutoff=alike):
            return _did_you_mean(names[close[0]], section)
    return nearest("", legal)


def hp_called(name: str) -> str | None:
    """Return the HP that is meant by another name, or None."""
    found = [key.partition(".")[2] for key in _KEYS.get(_written(name), ()) if key.startswith("hps.")]
    return found[0] if found else None


def dimension_called(name: str) -> str | None:
    """Return the dimension of a model or of its run that a name stands for, its own or another one, or None."""
    found = [key for key in _OTHER_NAMES if key.rpartition(".")[2] == name] or _KEYS.get(_written(name), [])
    found = [key for key in found if key.startswith(("model.base.", "training.batch", "training.steps"))]
    return found[0].rpartition(".")[2] if found else None


def _called(name: str, homes: Sequence[KeyPath], section: KeyPath, legal: Sequence[str]) -> list[KeyPath]:
    """Return the keys that have this other name: those of the section or, if it has none, of the file."""
    keys = _KEYS.get(name, ())
    last = [key.rpartition(".")[2] for key in keys]
    if here := [(*section, key) for key in last if key in legal]:
        return here
    paths = {spell(home): home for home in homes}
    return [paths[key] for key in keys if key in paths]


def _did_you_mean(found: Iterable[KeyPath], section: KeyPath) -> str:
    names = (shown(str(path[-1]) if path[:-1] == section else spell(path)) for path in found)
    return f"did you mean {' or '.join(names)}?"


def _written(name: str) -> str:
    """Return a name as keys are written: `numLayers` and `Num-Layers` are `num_layers`."""
    return re.sub(r"[\s\-.]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())).lower()


def _homes(model: type[BaseModel], above: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the key paths of a file. Keys inside lists and named parts, such as those of an axis, do not count."""
    for name, field in model.model_fields.items():
        yield (*above, name)
        for section in _sections(field.annotation):
            if section.__name__ not in _SHORT:
                yield from _homes(section, (*above, name))


_SHORT = ("Length", "RecipeRef")  # sections that most files write as one value


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the sections that a field may hold: a section, or a section or None."""
    if get_origin(annotation) in (dict, tuple):
        return
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield kind
