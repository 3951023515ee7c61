"""A small Mixtral under the Trainer of transformers. hpxfer calls `train` once per trial, in a process of its own."""

import math
import tempfile

import torch
from transformers import MixtralConfig, MixtralForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

VOCAB, CONTEXT, HELD_OUT = 64, 32, 256


class Sequences(torch.utils.data.Dataset):
    """Noisy counting: the next token is the last one plus a step that the sequence keeps, or in one of 8 cases any."""

    def __init__(self, number, seed):
        draws = torch.Generator().manual_seed(seed)
        start, step = (torch.randint(high, (number, 1), generator=draws) for high in (VOCAB, 8))
        noise = torch.randint(VOCAB, (number, CONTEXT), generator=draws)
        is_noise = torch.rand(number, CONTEXT, generator=draws) < 1 / 8
        self.ids = torch.where(is_noise, noise, (start + step * torch.arange(CONTEXT)) % VOCAB)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


class RecipeTrainer(Trainer):
    """Takes parameter groups and schedule from the trial. `optimizers=` would be made before the model is wrapped."""

    def __init__(self, trial, **rest):
        super().__init__(**rest)
        self.trial = trial

    def create_optimizer(self, model=None):
        self.optimizer = torch.optim.AdamW(self.trial.recipe.param_groups(model or self.model))
        return self.optimizer

    def create_scheduler(self, num_training_steps, optimizer=None):
        warmup, final = (self.trial.schedule[name] for name in ("warmup_steps", "final_fraction"))

        def factor(step):
            if step < warmup:
                return (step + 1) / warmup
            done = min(1.0, (step - warmup + 1) / max(1, num_training_steps - warmup))
            return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done))

        self.lr_scheduler = self.trial.recipe.scheduler(optimizer or self.optimizer, factor)
        return self.lr_scheduler


class Report(TrainerCallback):
    """Hands the losses that the Trainer logs to hpxfer."""

    def __init__(self, trial):
        self.trial = trial

    def on_log(self, args, state, control, logs=None, **rest):
        if logs and "loss" in logs:
            self.trial.report(state.global_step, logs["loss"], grad_norm=logs.get("grad_norm", 0.0))


def model_of(shape):
    """Return the model of a shape in our own words: d_model, layers, heads, experts, d_expert."""
    config = MixtralConfig(
        vocab_size=VOCAB,
        hidden_size=shape["d_model"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["heads"],
        intermediate_size=shape["d_expert"],
        num_local_experts=shape["experts"],
        num_experts_per_tok=shape["active"],
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        router_aux_loss_coef=0.0,
        sliding_window=None,
    )
    return MixtralForCausalLM(config)


def train(trial):
    set_seed(trial.seed)
    model = model_of(trial.shape)
    trial.recipe.attach(model)  # the forward multipliers; where they act in a Mixtral is known
    trial.recipe.init_(model)
    batch = trial.batch_tokens // CONTEXT
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=trial.steps,
            per_device_train_batch_size=batch,
            logging_steps=1,
            logging_nan_inf_filter=False,  # a loss that is not finite is a result
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            seed=trial.seed,
            max_grad_norm=0.0,  # clipping would change what the LR means
        )
        data = Sequences(trial.steps * batch, seed=trial.seed)
        trainer = RecipeTrainer(
            trial, model=model, args=arguments, train_dataset=data, eval_dataset=Sequences(HELD_OUT, seed=10**9)
        )
        trainer.add_callback(Report(trial))
        trainer.train()
        return {"validation": trainer.evaluate()["eval_loss"]}
