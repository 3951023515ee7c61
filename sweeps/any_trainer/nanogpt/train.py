"""A small GPT in plain torch, trained by DDP: torchrun --standalone --nproc-per-node 2 train.py CONFIG_JSON

hpxfer writes the config. This script reads it and takes the init, the parameter groups and the forward multipliers from
its recipe. It appends one line of JSON per report to a file.
"""

import json
import math
import os
import sys
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import hpxfer
from hpxfer.receipts import write_groups

VOCAB, CONTEXT, VALIDATION_SEQUENCES = 128, 64, 128
MODULES = ("argparse", "ast", "configparser", "datetime", "difflib", "doctest", "inspect", "pdb", "tarfile", "typing")


class Attention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.scaling = (n_embd // n_head) ** -0.5  # recipe.attach sets it

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for each in self.c_attn(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scaling)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, n_embd, n_inner):
        super().__init__()
        self.c_fc = nn.Linear(n_embd, n_inner, bias=False)
        self.c_proj = nn.Linear(n_inner, n_embd, bias=False)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, n_embd, n_head, n_inner):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(n_embd, bias=False), Attention(n_embd, n_head)
        self.ln_2, self.mlp = nn.LayerNorm(n_embd, bias=False), MLP(n_embd, n_inner)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, n_embd, n_layer, n_head, n_inner):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, n_embd), nn.Embedding(CONTEXT, n_embd)
        self.h = nn.ModuleList(Block(n_embd, n_head, n_inner) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd, bias=False)
        self.lm_head = nn.Linear(n_embd, VOCAB, bias=False)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        return F.cross_entropy(self.lm_head(self.ln_f(x)).flatten(0, 1), targets.flatten())


# What the recipe multiplies in the forward pass: patterns of module names, and keys of recipe.forward_multipliers.
SITES = [("h.*.attn", "attn_logits"), ("h.*.attn", "attn_out"), ("h.*.mlp", "dense_out"), ("lm_head", "readout")]


def text():
    """Return the token ids of some modules of Python's own library, and those that are held out."""
    folder = Path(sysconfig.get_path("stdlib"))
    data = b"".join((folder / f"{name}.py").read_bytes() for name in MODULES)
    ids = torch.frombuffer(bytearray(data), dtype=torch.uint8).long().clamp(max=VOCAB - 1)
    cut = len(ids) * 9 // 10
    return ids[:cut], ids[cut:]


def sequences(ids, starts):
    rows = torch.stack([ids[start : start + CONTEXT + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def lr_factor(config, step):
    """Return the factor on the peak LR of every group: warm-up, then a cosine to final_fraction."""
    schedule, steps = config["schedule"], config["steps"]
    warmup, final = schedule["warmup_steps"], schedule["final_fraction"]
    if step < warmup:
        return (step + 1) / warmup
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * (step - warmup + 1) / max(1, steps - warmup)))


def report(config, rank, **line):
    """Append one line to the report file, with one write. Only rank 0 speaks."""
    if rank == 0:
        with open(config["report_file"], "a") as file:
            file.write(json.dumps(line) + "\n")


def save(config, rank, step, model, optimizer, schedule):
    """Write a checkpoint. It gets its name when it is whole, and is then reported. The ones before are removed."""
    if rank == 0:
        path, before = Path(config["checkpoint_dir"], f"step-{step}.pt"), set(Path(config["checkpoint_dir"]).iterdir())
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "schedule": schedule.state_dict()}, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)
        report(config, rank, type="checkpoint", step=step, path=str(path))
        for old in before - {path}:
            old.unlink()


def main(config):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(config["seed"])

    recipe, shape = hpxfer.Recipe.parse(config["recipe"]["text"]), config["recipe"]["shape"]
    model = GPT(**config["shape"])  # n_embd, n_layer, ...: model.own of the sweep file
    roles = hpxfer.roles(model)
    recipe.attach(model, shape, SITES)
    recipe.init_(model, roles, shape)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(recipe.param_groups(model, roles, shape))
    schedule = recipe.scheduler(optimizer, lambda step: lr_factor(config, step))

    first = 0
    if config["resume"]:
        saved = torch.load(config["resume"], weights_only=True)
        for part, name in ((model, "model"), (optimizer, "optimizer"), (schedule, "schedule")):
            part.load_state_dict(saved[name])
        first = saved["step"] + 1

    train_ids, held_out = text()
    batch = config["batch_tokens"] // CONTEXT
    for step in range(first, config["steps"]):
        if rank == 0 and step in (0, config["schedule"]["warmup_steps"], config["steps"] - 1):
            write_groups(config["report_file"], step, hpxfer.receipt(model, optimizer, roles, init=step == 0))
        # The batch of a step follows from seed and step, whatever the number of ranks, and after a resume as well.
        draws = torch.Generator().manual_seed(config["seed"] * 1_000_003 + step)
        starts = torch.randint(len(train_ids) - CONTEXT, (batch,), generator=draws)[rank::world]
        loss = ddp(*sequences(train_ids, starts))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        dist.all_reduce(mean := loss.detach() / world)
        report(config, rank, type="report", step=step, loss=mean.item())
        if (step + 1) % config["args"]["save_every"] == 0:
            save(config, rank, step, model, optimizer, schedule)

    starts = torch.linspace(0, len(held_out) - CONTEXT - 1, VALIDATION_SEQUENCES).long()[rank::world]
    with torch.no_grad():
        mean = ddp(*sequences(held_out, starts)) / world
    dist.all_reduce(mean)
    report(config, rank, type="result", status="finished", validation_loss=mean.item())
    dist.destroy_process_group()
    # DDP keeps the threads of gloo alive, and a thread that still holds a tensor while Python ends aborts the process.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
