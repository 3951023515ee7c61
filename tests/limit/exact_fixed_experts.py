"""The limit of regime I with linear experts of one matrix, by the algorithm of Why Routers Freeze App. C (138-177).

Every vector of the limit is a linear combination of Gaussians, so that a row of coefficients is the vector, and nothing
is sampled. Two spaces exist: the features h1 live in the first, the readout and the experts' outputs in the second.
The equations are those of the paper, summed over the steps and corrected. `printed` names an erratum to leave as the
paper prints it, or a term to leave out: the result is then wrong on purpose.

Forward derivatives only; no matrix is inverted, and no two Gaussians are made orthogonal, unlike in the room.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from finite_net import batch_loss, gate
from numpy.typing import NDArray
from torch.autograd.functional import jacobian

from hpxfer.limit import Given, Network

Array = NDArray[np.float64]
ERRATA = (
    "166: no LR in the last sum",
    "166: the last sum starts at s = 1",
    "421: the gradient of expert k in place of expert j",
    "177: no response forward",
    "168: no response of the transpose",
)


@dataclass
class Basis:
    """A growing family of Gaussians with a covariance. A vector is a row of coefficients, shorter if it is older."""

    covariance: Array = field(default_factory=lambda: np.zeros((0, 0)))

    def grow(self, block: Array) -> int:
        """Add independent Gaussians whose covariance is `block`, and return the place of the first."""
        old, new = len(self.covariance), len(block)
        grown = np.zeros((old + new, old + new))
        grown[:old, :old], grown[old:, old:] = self.covariance, block
        self.covariance = grown
        return old

    def correlate(self, place: int, past: list[int], values: Array) -> None:
        """Set the covariance of the Gaussian at `place` with those at `past`."""
        self.covariance[place, past] = self.covariance[past, place] = values

    def mean(self, a: Array, b: Array) -> float:
        """E[a b]."""
        return float(a @ self.covariance[: len(a), : len(b)] @ b)

    def sum(self, terms: list[tuple[float, Array]]) -> Array:
        out = np.zeros(len(self.covariance))
        for factor, vector in terms:
            out[: len(vector)] += factor * vector
        return out


def unit(place: int) -> Array:
    out = np.zeros(place + 1)
    out[place] = 1.0
    return out


def coefficient(vector: Array, place: int) -> float:
    return float(vector[place]) if place < len(vector) else 0.0


def gates(network: Network, logits: Array, used: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return the weights [m] and their Jacobian J[j, k] = d weight_j / d logit_k, without inverse temperature."""

    def of(each: torch.Tensor) -> torch.Tensor:
        return gate(network.gate, each, torch.from_numpy(used))

    x = torch.from_numpy(logits)
    return of(x).numpy(), jacobian(of, x).numpy()


def gradient(given: Given, f: Array, targets: Array) -> tuple[float, Array]:
    """Return the batch's mean loss and chi = d loss / d f, [P, C]."""
    outputs = torch.tensor(f, requires_grad=True)
    loss = batch_loss(given, outputs[None], targets).sum()
    return loss.item(), torch.autograd.grad(loss, outputs)[0].numpy()


@dataclass
class Solved:
    loss: list[float] = field(default_factory=list)
    outputs: list[Array] = field(default_factory=list)  # [P, C]
    logits: list[Array] = field(default_factory=list)  # [P, m]
    gates: list[Array] = field(default_factory=list)  # [P, m]
    h1_rms: list[float] = field(default_factory=list)
    h3_rms: list[float] = field(default_factory=list)
    margin: list[float] = field(default_factory=list)


def solve_exactly(network: Network, given: Given, outputs: int, printed: frozenset[str] = frozenset()) -> Solved:
    m = network.num_experts or 0
    active = network.num_active or m
    share = {"1/K": 1 / active, "1/M": 1 / m, "none": 1.0}[network.aggregation]
    temperature = network.inverse_temperature
    num_inputs = given.batches[0].inputs.shape[1]
    std, rate = network.std, network.rate

    # Initialization, eqs. 138 and 144: the columns of W1, the rows of n W2, the rows of n W4
    first, third = Basis(), Basis()
    w1 = [unit(first.grow(np.eye(1))) for _ in range(num_inputs)]
    w2_std = 0.0 if network.parameterization == "mssp" else std("router")
    w2 = [w2_std * unit(first.grow(np.eye(1))) for _ in range(m)]
    w4 = [std("readout") * unit(third.grow(np.eye(1))) for _ in range(outputs)]
    h1_change: list[tuple[Array, Array]] = []  # (x_b, vector): what W1 was moved by
    back: list[list[list[int]]] = [[] for _ in range(m)]  # places of the hats of W0k^T w4_s(beta), by k, s, beta
    forth: list[list[list[int]]] = [[] for _ in range(m)]  # places of the hats of W0k h1_s(a), by k, s, a
    past_h1: list[list[Array]] = []
    past_w4: list[list[Array]] = []
    past_g: list[Array] = []
    past_chi: list[Array] = []
    bias = None if given.router_bias is None else given.router_bias[0].copy()
    out = Solved()

    def new_hats(space: Basis, places: list[list[int]], history: list[list[Array]], inside: Basis) -> None:
        """Add the hats of the newest vectors of `history`, correlated as those vectors are (136)."""
        flat = [place for step in places for place in step]
        older = [vector for step in history[:-1] for vector in step]
        row = []
        for vector in history[-1]:
            place = space.grow(np.array([[inside.mean(vector, vector)]]))
            space.correlate(place, flat, np.array([inside.mean(vector, other) for other in older]))
            row.append(place)
            flat.append(place)
            older.append(vector)
        places.append(row)

    for t, batch in enumerate(given.batches):
        x, samples = batch.inputs, range(len(batch.inputs))
        if bias is not None and network.router_bias != "learned":
            assert given.router_bias is not None
            bias = given.router_bias[t].copy()

        # forward
        scale1 = std("embedding") / np.sqrt(num_inputs)
        h1 = [
            first.sum([
                *((scale1 * x[a, j], w1[j]) for j in range(num_inputs)),
                *((-float(past_x @ x[a]), vector) for past_x, vector in h1_change),
            ])
            for a in samples
        ]  # fmt: skip
        past_h1.append(h1)
        past_w4.append(w4)
        psi = np.array([[first.mean(w2[k], h1[a]) for k in range(m)] for a in samples])
        if bias is not None:
            psi = psi + bias
        used = np.argsort(np.argsort(-psi, axis=1, kind="stable"), axis=1) < active
        used = used if given.active is None else given.active[t]
        pairs = [gates(network, temperature * psi[a], used[a]) for a in samples]
        weights, jacobians = np.array([g for g, _ in pairs]), [j for _, j in pairs]
        g = share * weights
        h3k: list[list[Array]] = []
        for k in range(m):
            new_hats(third, forth[k], past_h1, first)
            row = []
            for a in samples:
                terms = [(std("expert_out"), unit(forth[k][t][a]))]
                for s in range(t):
                    for beta in range(outputs):
                        if "177: no response forward" not in printed:
                            response = coefficient(h1[a], back[k][s][beta])
                            terms.append((std("expert_out") * response, past_w4[s][beta]))
                        effective = sum(
                            past_g[s][b, k] * first.mean(past_h1[s][b], h1[a]) * past_chi[s][b, beta]
                            for b in range(len(past_h1[s]))
                        )
                        terms.append((-given.lrs[s] * rate("expert_out") * effective, past_w4[s][beta]))
                row.append(third.sum(terms))
            h3k.append(row)
        h3 = [third.sum([(g[a, k], h3k[k][a]) for k in range(m)]) for a in samples]
        f = np.array([[third.mean(w4[beta], h3[a]) for beta in range(outputs)] for a in samples])
        loss, chi = gradient(given, f, batch.targets)
        past_g.append(g)
        past_chi.append(chi)
        out.loss.append(loss)
        out.outputs.append(f)
        out.logits.append(psi)
        out.gates.append(weights)
        out.h1_rms.append(float(np.sqrt(np.mean([first.mean(v, v) for v in h1]))))
        out.h3_rms.append(float(np.sqrt(np.mean([third.mean(v, v) for v in h3]))))
        ordered = -np.sort(-psi, axis=1)
        out.margin.append(float((ordered[:, active - 1] - ordered[:, active]).min()) if active < m else np.inf)
        if t == given.num_updates:
            break

        # backward: dg (163), dh2 (164), the transposed experts (166, 168), dh1
        dg = np.array([[[third.mean(h3k[k][a], w4[b]) for b in range(outputs)] for k in range(m)] for a in samples])
        if "421: the gradient of expert k in place of expert j" in printed:
            dh2 = np.array([jacobians[a].sum(0)[:, None] * dg[a] for a in samples])
        else:
            dh2 = np.array([jacobians[a].T @ dg[a] for a in samples])
        moved = temperature * share * np.einsum("akc,ac->ak", dh2, chi)  # d loss / d psi
        transposed: list[list[Array]] = []
        for k in range(m):
            new_hats(first, back[k], past_w4, third)
            row = []
            for beta in range(outputs):
                terms = [(std("expert_out"), unit(back[k][t][beta]))]
                if "168: no response of the transpose" not in printed:
                    # The sum ends at t: h1_t came before w4_t was used, and w4_t holds no hat of step t yet.
                    for s in range(t):
                        for a in range(len(past_h1[s])):
                            response = coefficient(w4[beta], forth[k][s][a])
                            terms.append((std("expert_out") * response, past_h1[s][a]))
                start = 1 if "166: the last sum starts at s = 1" in printed else 0
                for s in range(start, t):
                    lr = 1.0 if "166: no LR in the last sum" in printed else given.lrs[s]
                    overlaps = np.array([third.mean(past_w4[s][c], w4[beta]) for c in range(outputs)])
                    for b in range(len(past_h1[s])):
                        factor = past_g[s][b, k] * float(past_chi[s][b] @ overlaps)
                        terms.append((-lr * rate("expert_out") * factor, past_h1[s][b]))
                row.append(first.sum(terms))
            transposed.append(row)
        dh1 = [
            first.sum([
                *((moved[a, k], w2[k]) for k in range(m)),
                *((g[a, k] * chi[a, beta], transposed[k][beta]) for k in range(m) for beta in range(outputs)),
            ])
            for a in samples
        ]  # fmt: skip

        # The updates of SGD: eqs. 159 to 161, and 169.
        lr = given.lrs[t]
        h1_change += [(x[a], lr * rate("embedding") * dh1[a]) for a in samples]
        w2 = [
            first.sum([(1.0, w2[k]), *((-lr * rate("router") * moved[a, k], h1[a]) for a in samples)]) for k in range(m)
        ]
        w4 = [
            third.sum([(1.0, w4[b]), *((-lr * rate("readout") * chi[a, b], h3[a]) for a in samples)])
            for b in range(outputs)
        ]
        if network.router_bias == "learned":
            assert bias is not None
            bias = bias - lr * rate("router_bias") * moved.sum(0)
    return out
