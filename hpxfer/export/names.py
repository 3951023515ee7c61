"""Names: the parameters of a user's model as a file, and a torch model without memory that has these parameters.

A file of JSON holds `{"parameters": [{"name": "layers.0.wq.weight", "size": [64, 64], "role": "attn_q"}, ...]}`. A text
file holds one parameter per line: its name, its size and its role, e.g. `layers.0.wq.weight 64x64 attn_q`. Only the
name is needed. A size is then the nominal one of the role, and a role follows from the name. A name with `*` is no
parameter but a pattern, whose role all parameters have that it matches and that have none of their own:
`*.kv_b_proj.weight attn_k+attn_v@512`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from hpxfer.errors import HpxferError, cut, joined, nearest, shown
from hpxfer.host import read_text, write_files
from hpxfer.recipe import AT, embedding_scale, gain_of, names_of_each, plain_modules, plain_names
from hpxfer.recipe import roles as proposed_roles
from hpxfer.scaling.numbers import JOIN
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import Shape
from hpxfer.spec import KeyPath, Positive, Section, Seq, YamlFile, validated

if TYPE_CHECKING:
    import torch


# Where the number of tokens in the vocabulary and the length of the context are not known. No number follows from them.
VOCABULARY, CONTEXT = 50304, 2048


# Stand-in: a torch model without memory whose parameters have the names and sizes of a model that is not here.
#
# So a recipe gives a list of names what it gives the model itself, by the same rules and with the same refusals.


def stand_in(
    parameters: Sequence[Named], roles: Mapping[str, str], sized: Mapping[str, str], shape: Shape
) -> torch.nn.Module:
    """Return the model. `roles` maps each name to its role, and `sized` to that from which an unknown size follows.

    Memory is not taken (device meta).
    """
    import torch

    root = torch.nn.Module()
    tensors: dict[str, torch.nn.Parameter] = {}
    for one in parameters:
        *path, last = one.name.split(".")
        size = _of_matrices(one.size or nominal_size(one.name, sized[one.name], shape), roles[one.name], shape)
        module = root
        for at, part in enumerate(path):
            # Names such as `forward` may be parts too, so that attributes of Module must not be set.
            known = module._modules.get(part)
            is_linear = at == len(path) - 1 and AT in roles[one.name] and len(size) == 2
            fresh = torch.nn.Linear(size[1], size[0], bias=False, device="meta") if is_linear else torch.nn.Module()
            module._modules[part] = module = known if known is not None else fresh
        tensor = torch.nn.Parameter(torch.empty(size, device="meta"), requires_grad=not one.frozen)
        module._parameters[last] = tensors[one.name] = tensor if one.same_as is None else tensors[one.same_as]
        if one.one_plus:
            module.__dict__["zero_centered_gamma"] = True
        if one.embedding_scale != 1.0:
            module.__dict__["embed_scale"] = one.embedding_scale
    return root


def nominal_size(name: str, role: str, shape: Shape) -> tuple[int, ...]:
    """Return the size of a tensor of this role in a model of this shape.

    An expert's matrix stands by itself if the name has a number for the expert. Else the tensor holds all of a layer.
    """
    roles = role.partition(AT)[0].split(JOIN)
    sizes = [_nominal(each, shape) for each in roles]
    size = (sum(size[0] for size in sizes), *sizes[0][1:])
    count = {"expert": shape.num_experts, "shared": shape.num_shared}.get(roles[0].partition("_")[0], 1)
    return size if count < 2 or _has_number(name) else (count, *size)


def _has_number(name: str) -> bool:
    """Return whether a number of this name counts experts: the second one, one behind their word, or `weight3`."""
    parts = name.split(".")
    numbers = [at for at, part in enumerate(parts) if part.isdigit()]
    behind = any("expert" in part.lower() for part in parts[: numbers[-1]]) if numbers else False
    return len(numbers) > 1 or behind or re.fullmatch(r"(weight|bias)\d+", parts[-1]) is not None


def _nominal(role: str, shape: Shape) -> tuple[int, ...]:
    width = shape.width
    hidden = {"expert": shape.expert_width, "shared": shape.shared_width, "dense": shape.dense_width}
    kind, _, part = role.partition("_")
    match role:
        case "embedding" | "readout":
            return VOCABULARY, width
        case "position":
            return CONTEXT, width
        case "attn_q":
            return shape.attention_width, width
        case "attn_k" | "attn_v":
            return shape.kv_width, width
        case "attn_out":
            return width, shape.attention_width
        case "router":
            return shape.num_experts or 1, width
        case "router_bias":
            return (shape.num_experts or 1,)
    if ROLES[role] != "matrix":
        return (width,)
    # A target without such layers is refused by the recipe, which names the dimension.
    rows = hidden[kind] or 1
    return (width, rows) if part == "out" else (rows, width)


def _of_matrices(size: tuple[int, ...], role: str, shape: Shape) -> tuple[int, ...]:
    """Return the size with the width as a dimension of its own, if a router or all experts are stored flat."""
    kinds = {part.partition("_")[0] for part in role.split(JOIN)}
    whole = math.prod(size)
    if kinds <= {"router", "expert"} and role != "router_bias" and shape.width not in size and not whole % shape.width:
        return whole // shape.width, shape.width
    return size


NAME = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
MAX_PARAMETERS = 10**6
MAX_NAME = 500  # characters


class Named(Section):
    """One parameter of a model that is not here."""

    name: str
    size: Seq[Annotated[int, Field(ge=1)]] | None = None
    """None is the nominal size of its role."""
    role: str | None = None
    """None is what its name says."""
    same_as: str | None = None
    """The first name of the tensor that this one is too."""
    frozen: bool = False
    """Whether the optimizer does not train it."""
    one_plus: bool = False
    """Whether it is a gain w of a norm that multiplies by 1 + w."""
    embedding_scale: Positive = 1.0
    """By which the model multiplies the rows of an embedding."""

    @property
    def is_pattern(self) -> bool:
        """Whether this gives a role to the parameters whose names it matches, and is none itself."""
        return "*" in self.name


class NamesFile(Section):
    """A names file."""

    parameters: Seq[Named]


def names_of(model: torch.nn.Module) -> list[Named]:
    """Return the parameters of a torch model, under its wrappers, with sizes and with the roles of `hpxfer.roles`.

    The model may lie on the device `meta`. A parameter for which no role is proposed has none.
    """
    plain, modules = plain_names(model), plain_modules(model)
    tensors = {plain(name): tensor for name, tensor in model.named_parameters(remove_duplicate=False)}
    role_of = {name: match.role for match in proposed_roles(model).matches for name in match.names}
    first = {name: names[0] for names in names_of_each(tensors) for name in names}
    return [_named(name, tensor, role_of.get(name), first[name], modules) for name, tensor in tensors.items()]


def write_names(model: torch.nn.Module, path: str | Path) -> None:
    """Write the names file of a torch model, for `recipe export --names`. Raise HpxferError if it cannot be written."""
    rows = [one.model_dump(exclude_defaults=True) for one in names_of(model)]
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    content = f'{{"parameters": [\n  {lines}\n]}}\n'.encode()
    try:
        write_files({Path(path): lambda file: file.write(content)})
    except OSError as error:
        raise HpxferError(f"{path}: cannot be written: {error.strerror}; choose another path") from None


def read_names(path: str | Path) -> tuple[Named, ...]:
    """Return the parameters in a names file. Raise HpxferError, with one line per broken rule, if it holds none."""
    try:
        text = read_text(path)
    except OSError as error:
        raise HpxferError(f"{cut(str(path), 240)}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise HpxferError(f"{path}: must be a text, got another file: {error}") from None
    lines: dict[KeyPath, int] = {}
    if text.lstrip()[:1] in ("{", "["):
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise HpxferError(f"{path}: not a JSON file: {error}") from None
    else:
        found = [(number, line.partition("#")[0].split()) for number, line in enumerate(text.splitlines(), 1)]
        data = {"parameters": [_of_words(f"{path}:{number}", words) for number, words in found if words]}
        numbers = (number for number, words in found if words)
        lines = {("parameters", at): number for at, number in enumerate(numbers)}
    if not isinstance(data, dict):
        rule = f'{path}: must hold {{"parameters": [...]}}, one mapping with a name per parameter'
        raise HpxferError(f"{rule}, got {shown(data)}; hpxfer.export.write_names(model, path) writes one")
    return checked(validated(NamesFile, YamlFile(name=str(path), data=data, lines=lines)).parameters, str(path))


def checked(parameters: Sequence[Named], where: str) -> tuple[Named, ...]:
    """Return the parameters. Raise HpxferError, with one line per broken rule, if they cannot be those of a model."""
    if not 0 < len(parameters) <= MAX_PARAMETERS:
        raise HpxferError(f"{where}: must name from 1 to {MAX_PARAMETERS} parameters, got {len(parameters)}")
    if problems := list(_problems(parameters)):
        raise HpxferError(joined(f"{where}: {problem}" for problem in problems))
    return tuple(parameters)


def _named(name: str, tensor: torch.Tensor, role: str | None, first: str, modules: dict[str, torch.nn.Module]) -> Named:
    path, _, last = name.rpartition(".")
    scale, one_plus = 1.0, False
    if role == "embedding":
        scale = embedding_scale(modules[path], last, modules.get(path.rpartition(".")[0]), tensor.shape[-1])
    elif role in ("norm", "final_norm"):
        gain = gain_of(modules[path], last)
        one_plus = gain is not None and gain.offset == 1.0
    return Named(
        name=name,
        size=tuple(tensor.shape),
        role=role,
        same_as=None if first == name else first,
        frozen=not tensor.requires_grad,
        one_plus=one_plus,
        embedding_scale=scale,
    )


def _of_words(where: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the parameter in a line: its name, then its size and its role, each of which may be left out."""
    name, *rest = words
    out: dict[str, Any] = {"name": name}
    if rest and re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18})*", rest[0]):
        out["size"] = list(map(int, rest.pop(0).split("x")))
    if len(rest) > 1:
        raise HpxferError(f"{where}: must be a name, a size such as 64x64 and a role, got {shown(' '.join(words))}")
    return {**out, "role": rest[0]} if rest else out


def _problems(found: Sequence[Named]) -> Iterator[str]:
    """Yield the rules that names break: dotted words, each once, and none of them the module of another."""
    seen = set[str]()
    modules = {one.name[:at] for one in found for at, letter in enumerate(one.name) if letter == "."}
    for one in found:
        if one.is_pattern:
            if one != Named(name=one.name, role=one.role) or not one.role or one.name in seen:
                yield f"a pattern must have a role and nothing else behind it, once, got {shown(one.name)}"
        elif len(one.name) > MAX_NAME or NAME.fullmatch(one.name) is None:
            rule = "a name must be words of letters, digits and '_' with dots between them"
            yield f"{rule}, got {shown(one.name)}; write names without wrappers"
        elif one.name in seen:
            yield f"each name must stand once, got {one.name} twice; keep one"
        elif one.name in modules:
            yield f"{one.name}: a parameter cannot hold other parameters, got names that start with {one.name}."
        if one.same_as is not None and one.same_as not in seen:
            yield f"{one.name}: same_as: must be a name further up, got {shown(one.same_as)}"
        for part in one.role.partition(AT)[0].split(JOIN) if one.role else ():
            if part not in ROLES:
                yield f"{one.name}: unknown role {shown(part)}; {nearest(part, ROLES)}"
        seen.add(one.name)
