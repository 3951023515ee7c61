"""About how long a solution takes, on one core.

The constants were measured on one core of an AMD EPYC with numpy 2.4 (2026-11). Letters: T updates, P samples of a
batch, m experts, L blocks.
"""

from __future__ import annotations

from hpxfer.limit.given import Given
from hpxfer.limit.network import Network

# Seconds of regime I per (m T P)^2 and, where it is sampled, per site too. Of II per site, (1 + N_e) and (T P)^2. Of
# III per site and (T P)^3. Of the residual network per site, block and sample of a pass.
I_S, I_SAMPLED_S, II_S, III_S, RESIDUAL_S = 8e-8, 1e-9, 2.6e-9, 7e-10, 1e-7
GAUSSIAN_S = 2e-7  # per Gaussian of a site, which is drawn and made orthogonal to the others


def seconds(network: Network, given: Given, sites: int, gaussians: int) -> float:
    """Return about how long one seed takes, where a site of every population has `gaussians` in all."""
    samples = updated_samples(given)
    match network.regime:
        case "I":
            each = I_S if network.is_linear else I_SAMPLED_S * sites
            updates = each * ((network.num_experts or 1) * samples) ** 2
        case "II":
            updates = II_S * sites * (1 + (network.expert_width or 1)) * samples**2
        case "III":
            updates = III_S * sites * samples**3
        case "residual":
            updates = RESIDUAL_S * sites * network.depth * given.num_samples
    return updates + GAUSSIAN_S * sites * gaussians


def updated_samples(given: Given) -> int:
    """Return T P: the samples of all passes that an update follows."""
    return given.num_samples - len(given.batches[-1].inputs)
