"""What a seed decides in a model: initial parameters, biases of routers, ties. The same bits on every device."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from hpxfer.model.flat import FlatLayout
from hpxfer.scaling.roles import ROLES
from hpxfer.spec import FIXED_BIAS_STD
from hpxfer.trial import Trial

# Normal numbers from a key and a counter: any part of a stream by itself, with the same bits on every device.
#
# The words are those of SplitMix64, the generator of `java.util.SplittableRandom`, which passes BigCrush of TestU01
# (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014). The n-th word of a stream is
# mix(start + n * gamma) modulo 2^64. The key decides the start and the odd gamma. A word gives two numbers, the first
# from its lower half. int64 tensors wrap around on a CPU and on a GPU, so no bit depends on the device.

# mix(z): z ^= z >> shift (without the sign), z *= factor, for each pair. The constants are "Mix13" of D. Stafford.
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
# The numbers that are computed at once: a CPU's cache holds the buffers, and a GPU is busy longer than a launch takes.
CHUNK = {"cpu": 2**16, "cuda": 2**23}


def normals(keys: Sequence[str], numel: int, device: torch.device, chunk: int) -> Iterator[Tensor]:
    """Yield the first `numel` numbers of each key's stream, float32 [keys, n], `chunk` after `chunk`.

    How many numbers of a stream are computed at once changes none of them. An odd `chunk` counts as the next even one.
    """
    words, step = (numel + 1) // 2, (chunk + 1) // 2
    starts, gammas = torch.tensor([stream(key) for key in keys], device=device).T.unsqueeze(-1)
    for first in range(0, words, step):
        mixed = _mixed(first, min(step, words - first), starts, gammas)
        yield to_normal(mixed.view(torch.int32))[:, : numel - 2 * first]


def stream(key: str) -> tuple[int, int]:
    """Return the start and the gamma of a key's stream, as signed numbers of 64 bits."""
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    start, gamma = (int.from_bytes(part, "little") for part in (digest[:8], digest[8:]))
    gamma |= 1
    if (gamma ^ gamma >> 1).bit_count() < 24:  # too regular, as in the paper's mixGamma
        gamma ^= 0xAAAAAAAAAAAAAAAA
    return _signed(start), _signed(gamma)


def _mixed(first: int, num: int, starts: Tensor, gammas: Tensor) -> Tensor:
    """Return the words [streams, num] from `first` on, int64, for starts and gammas [streams, 1]."""
    words = torch.arange(first, first + num, device=starts.device) * gammas
    words.add_(starts)
    for shift, factor in _MIX:
        high = (words >> shift).bitwise_and_(2 ** (64 - shift) - 1)
        words.bitwise_xor_(high)
        if factor != 1:
            words.mul_(_signed(factor))
    return words


def _signed(number: int) -> int:
    """Return the signed number that has the same 64 bits."""
    return number - 2**64 if number >= 2**63 else number


# Normal numbers from random integers, by the inverse of the normal distribution, with the same bits on every device.
#
# The 2^32 values of an integer stand for equal shares of probability. An integer v becomes the middle of its share: the
# number z whose probability Phi(z) is 1/2 + (v + 1/2) / 2^32. So |z| is at most 6.34.
#
# The sign is that of v, and 31 bits are left. The lower half of their range is the center. The upper half is the tail,
# which is counted from its far end. A count t = 1, 3, 5, ... is thus in units of probability 2^-33 from 1/2 or from the
# end, and float32 holds it to 24 digits. Each octave of t is cut into PIECES equal pieces, and each piece has a cubic.
#
# A GPU gives the bits of a CPU because every step is an integer operation, a conversion, a lookup, or one float32
# addition or multiplication, which IEEE 754 rounds in one way. A fused multiply-add (addcmul, a compiled kernel) rounds
# once less, and log, sqrt and the like come from other libraries on a GPU, so none of them may be used here. The
# coefficients are found in Python's float64 by + - * / alone. They are therefore the same on every machine.

DEGREE = 3
SPLIT = 4
PIECES = 2**SPLIT  # per octave
OCTAVES = 31
HALF = 32 * PIECES  # the rows of a half in the table; the last octave is not used, but for its first row
_TERMS = 16  # of the power series
_MANTISSA = 23 - SPLIT  # the bits of a float32's mantissa that say where in its piece a count lies
_ONE = 127 << SPLIT  # the upper bits of the float32 1.0
_MAX = 2**31 - 1
# The inverse at a probability of 2^-33, and its slope by the probability in units of 2^-33.
_END, _END_SLOPE = 6.3379577545537895, -0.15411377108941832
_NODES = (0.03806023374435663, 0.3086582838174551, 0.6913417161825448, 0.9619397662556434)  # Chebyshev's, in [0, 1]


def to_normal(words: Tensor) -> Tensor:
    """Return the normal numbers that random int32 `words` stand for, float32 of the same size.

    The relative error against the exact inverse is at most 1.6e-7: a test holds a million words of every octave to it.
    """
    table = _table(words.device)
    word = words.flatten()
    magnitude = (word >> 31).bitwise_xor_(word)  # v or -1 - v
    row = (magnitude >> 30).bitwise_left_shift_(SPLIT + 5)  # 0 in the center, HALF in the tail
    count = torch.minimum(magnitude, magnitude.bitwise_xor(_MAX), out=magnitude)
    bits = count.mul_(2).add_(1).to(torch.float32).view(torch.int32)
    row = row.add_(bits >> _MANTISSA).sub_(_ONE).long()  # a lookup by int64 is twice as fast on a CPU
    place = bits.bitwise_and_(2**_MANTISSA - 1).to(torch.float32)
    out = torch.index_select(table[DEGREE], 0, row)
    for power in reversed(range(DEGREE)):
        out.mul_(place).add_(torch.index_select(table[power], 0, row))
    out.view(torch.int32).bitwise_xor_(word.bitwise_and(-_MAX - 1))
    return out.view(words.shape)


@functools.lru_cache(maxsize=4)
def _table(device: torch.device) -> Tensor:
    """Return the coefficients [DEGREE + 1, 2 * HALF] on a device, float32."""
    rows = _rows(0.0, math.sqrt(2 * math.pi) / 2**33, start=0.0) + _rows(_END, _END_SLOPE, start=1.0)
    return torch.tensor(rows, dtype=torch.float32).T.contiguous().to(device)


def _rows(value: float, slope: float, *, start: float) -> list[list[float]]:
    """Return HALF cubics of the inverse, in units of 2^-_MANTISSA of their piece.

    `value` and `slope` are those at the count `start`. The series go on from the end of one piece to the next. This
    loses no digits from the far end toward the center, nor over half of the way in the other direction.
    """
    if start == 0.0:  # to the first count
        value, slope = _next(_series(value, slope))
    slope /= PIECES  # per piece
    rows = []
    for _ in range(OCTAVES):
        for _ in range(PIECES):
            series = _series(value, slope)
            rows.append(_cubic(series))
            value, slope = _next(series)
        slope *= 2
    rows.append([value] + [0.0] * DEGREE)
    return rows + [[0.0] * (DEGREE + 1)] * (HALF - len(rows))


def _series(value: float, slope: float) -> list[float]:
    """Return the power series of the inverse from a point on, by its differential equation z'' = z z'^2.

    Sums are `math.fsum`, which rounds once. The built-in `sum` has other bits in other versions of Python.
    """
    z, dz = [value, slope], [slope]
    squares: list[float] = []
    for n in range(_TERMS):
        squares.append(math.fsum(dz[i] * dz[n - i] for i in range(n + 1)))
        z.append(math.fsum(z[i] * squares[n - i] for i in range(n + 1)) / ((n + 1) * (n + 2)))
        dz.append((n + 2) * z[n + 2])
    return z


def _next(series: list[float]) -> tuple[float, float]:
    """Return the value and the slope at 1."""
    return math.fsum(series), math.fsum(k * term for k, term in enumerate(series))


def _cubic(series: list[float]) -> list[float]:
    """Return the cubic through a series at the four Chebyshev points of [0, 1], in units of 2^-_MANTISSA.

    Terms that float32 cannot see beside the value are zero, so that no product is subnormal.
    """
    newton = [_horner(series, x) for x in _NODES]
    for order in range(1, DEGREE + 1):
        for i in range(DEGREE, order - 1, -1):
            newton[i] = (newton[i] - newton[i - 1]) / (_NODES[i] - _NODES[i - order])
    terms = [newton[DEGREE]]
    for i in range(DEGREE - 1, -1, -1):  # times (x - node), plus the next
        shifted = [newton[i], *terms]
        for k, term in enumerate(terms):
            shifted[k] -= _NODES[i] * term
        terms = shifted
    kept = [term if abs(term) > 2.0**-30 * abs(terms[0]) else 0.0 for term in terms]
    return [term / 2.0 ** (_MANTISSA * k) for k, term in enumerate(kept)]


def _horner(terms: list[float], x: float) -> float:
    out = 0.0
    for term in reversed(terms):
        out = out * x + term
    return out


CPU = torch.device("cpu")
# One draw covers the router noise of this many steps.
NOISE_STEPS = 16
# `counter` computes at least so many numbers of a trial at once, however many trials there are.
LEAST = 2**10
EXPERT_ROLES = ("expert_in", "expert_gate", "expert_out")


def draw(
    layout: FlatLayout,
    seeds: Sequence[int],
    stds: Sequence[dict[str, float]],
    tied: Sequence[bool] = (),
    *,
    method: str = "generator",
    device: torch.device = CPU,
) -> torch.Tensor:
    """Return the initial vector on the device, float32: gains are one, matrices normal with the std of their role.

    `stds[k]` maps a role to its init std in trial k. Where `tied[k]`, all experts of a layer start from the same draw
    and train independently afterwards (MSSP, regime III). A draw depends only on the seed of the trial, the name of
    the parameter and its copy. It is therefore the same whatever is stacked beside it, and on every device.

    `method` is a sweep's `model.init_draw`. `generator` draws one number after the other on one thread of the CPU, with
    torch's generator. `counter` computes all numbers of all trials side by side on the device. Nothing else that a
    seed decides is many numbers, so everything else has one method: `router_noise`, `fixed_bias` and `tie_keys` here,
    and the order of the data.
    """
    flat = torch.zeros(layout.numel, device=CPU if method == "generator" else device)
    views = layout.weights(flat)
    fill = _FILLS[method]
    for spec in layout.parameters:
        kinds = [_kind(spec.role, stds[k][spec.role], bool(tied) and tied[k]) for k in range(len(seeds))]
        for copy, out in enumerate(views[spec.name]):
            keys = [f"{seed}/{spec.name}/{copy}" for seed in seeds]
            for kind, run in groupby(range(len(seeds)), kinds.__getitem__):
                trials = list(run)
                part = out[trials[0] : trials[-1] + 1]
                if kind == "ones":
                    part.fill_(1.0)
                elif kind != "zeros":
                    sharing = part.shape[1] if kind == "tied" else 1
                    fill(
                        part.view(len(trials), sharing, -1),
                        [keys[k] for k in trials],
                        [stds[k][spec.role] for k in trials],
                    )
    return flat.to(device)


def router_noise(seeds: Sequence[int], blocks: Sequence[int], num_experts: int, chunk: int) -> torch.Tensor:
    """Return standard normal b_t [NOISE_STEPS, L, U, E], float32 on the CPU, for L MoE blocks and U seeds.

    This is the shared router-bias schedule of 2601-router-freeze, Algorithm 1, for the steps from chunk * NOISE_STEPS
    on. A draw depends only on the seed, the block and the step. It is therefore the same at every width.
    """
    out = torch.empty(NOISE_STEPS, len(blocks), len(seeds), num_experts)
    for layer, block in enumerate(blocks):
        for row, seed in enumerate(seeds):
            generator = _generator(f"{seed}/b_t/{block}/{chunk}")
            out[:, layer, row] = torch.randn(NOISE_STEPS, num_experts, generator=generator)
    return out


def bias_std(trial: Trial) -> float:
    """Return the std of the router bias that a trial draws by `router_noise` and never trains. It is 0 without one."""
    mlp = trial.setting.mlp
    own = mlp.router_bias_std if mlp.router_bias in ("fixed", "schedule") else 0.0
    return own or trial.structure().router_bias_std


def untrained_bias(trial: Trial, blocks: Sequence[int], step: int) -> torch.Tensor | None:
    """Return what is added to the logits of a trial's routers at a step, [L, E], or None if nothing is.

    Validation is at step = steps. A learned bias is a parameter, and not part of this.
    """
    parts, count = [], trial.shape.num_experts
    if blocks and (std := bias_std(trial)):
        chunk, at = divmod(0 if trial.setting.mlp.router_bias == "fixed" else step, NOISE_STEPS)
        parts.append(router_noise([trial.seed], blocks, count, chunk)[at, :, 0] * std)
    if blocks and trial.setting.ties == "fixed_bias":
        parts.append(fixed_bias([trial.seed], blocks, count)[:, 0])
    return torch.stack(parts).sum(0) if parts else None


def fixed_bias(seeds: Sequence[int], blocks: Sequence[int], num_experts: int) -> torch.Tensor:
    """Return the bias [L, U, E] of the routers of L MoE blocks for U seeds, float32 on the CPU. It is never trained.

    A draw depends only on the seed, the block and the expert. It is therefore the same at every width, and a model with
    more experts has the same first ones.
    """
    draws = [
        torch.randn((), generator=_generator(f"{seed}/fixed_bias/{block}/{expert}"))
        for block in blocks
        for seed in seeds
        for expert in range(num_experts)
    ]
    return FIXED_BIAS_STD * torch.stack(draws).view(len(blocks), len(seeds), num_experts)


def tie_keys(seeds: Sequence[int], blocks: Sequence[int]) -> torch.Tensor:
    """Return the keys [L, U], int32 from 0, of the random order in which L MoE blocks choose among equal experts."""
    keys = [[_number(f"{seed}/ties/{block}") >> 32 for seed in seeds] for block in blocks]
    return torch.tensor(keys, dtype=torch.int32).view(len(blocks), len(seeds))


def _kind(role: str, std: float, tied: bool) -> str:
    """Return how a trial's copies of a role start: `ones`, `zeros`, or normal, with `tied` or `own` draws."""
    if ROLES[role] == "ones":
        return "ones"
    if not std:
        return "zeros"
    return "tied" if tied and role in EXPERT_ROLES else "own"


def _fill_by_generator(out_KEN: torch.Tensor, keys: Sequence[str], stds: Sequence[float]) -> None:
    """Write the numbers of each trial's generator, the same for all E."""
    for out_EN, key, std in zip(out_KEN, keys, stds, strict=True):
        out_EN.copy_(torch.randn(out_EN.shape[1], generator=_generator(key)))
        out_EN.mul_(std)


def _fill_by_counter(out_KEN: torch.Tensor, keys: Sequence[str], stds: Sequence[float]) -> None:
    """Write the numbers of each trial's stream, the same for all E. Trials of one seed share the work."""
    device = out_KEN.device
    rows = {key: row for row, key in enumerate(dict.fromkeys(keys))}
    rows_K = torch.tensor([rows[key] for key in keys], device=device)
    stds_K = torch.tensor(stds, device=device)
    begin = 0
    for values_UN in normals(list(rows), out_KEN.shape[2], device, max(LEAST, CHUNK[device.type] // len(keys))):
        end = begin + values_UN.shape[1]
        scaled_KN = values_UN.index_select(0, rows_K).mul_(stds_K.unsqueeze(1))
        out_KEN[:, :, begin:end] = scaled_KN.unsqueeze(1)
        begin = end


_FILLS: dict[str, Callable[[torch.Tensor, Sequence[str], Sequence[float]], None]] = {
    "generator": _fill_by_generator,
    "counter": _fill_by_counter,
}


def _generator(key: str) -> torch.Generator:
    return torch.Generator().manual_seed(_number(key))


def _number(key: str) -> int:
    """Return a number of 63 bits that looks random."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") >> 1
