"""What MSSP predicts for its minimal block: exponents of the width after 0, 1 and 2 updates.

The rows are those of tables J.3.2, J.3.4, J.4.3 and J.4.5 (forward, backward) and Q.4 (gradients), for SGD, a single
sample and linear experts. The third column holds for all later updates. `zero` is an exact zero, and `?` is no
prediction. muP starts from a random readout, MSSP from a zero readout. Two entries differ from the print: E.2 at t = 1
is -3 (II: -5/2, III: -2 in print), and the cross piece of h3_i at t = 1 in III is -1/2 (-3/2 in print).

Some sums of the paper are left out. In muP their suppressed terms are the larger ones at every width that can be
trained, so that the measured exponent lies between the two (the paper warns of this in Q.6).
"""

from __future__ import annotations

from collections.abc import Mapping

# Role -> quantity -> exponents of the width after 0, 1 and 2 updates; the third holds from there on. `zero` is an exact
# zero, `?` no claim. Example: {"readout": {"gradient": "0 0 0"}}.
BlockRows = Mapping[str, Mapping[str, str]]

# Adam's eps in each regime (Table B.1, G.1 and G.2). Those of regime I are also in Why Routers Freeze, Table 2.
EPS: Mapping[str, Mapping[str, str]] = {
    "I": {"embedding": "-1", "router": "0", "expert_in": "-1", "expert_out": "-1", "readout": "0"},
    "II": {"embedding": "-1", "router": "-1", "expert_in": "-1", "expert_out": "-2", "readout": "0"},
    "III": {"embedding": "-1", "router": "-1", "expert_in": "-2", "expert_out": "-2", "readout": "0"},
}

MUP_II: BlockRows = {
    "embedding": {
        "activation": "0 0 0",
        "change": "zero -1/2 0",
        "gradient": "-3/2 -1 -1",
        "weight change": "zero -1/2 0",
        "df/dh1": "-3/2 -1 -1",
    },
    "router": {
        "activation": "0 0 0",
        "init": "0 0 0",
        "gate": "0 0 0",
        "effective0": "zero -1/2 0",
        "propagating": "zero -1/2 0",
        "gradient": "-3/2 -1 -1",
        "weight change": "zero -3/2 -1",
        "df/dh1: router": "-3/2 -1 -1",
        "df/dh1: Q0 W30 W40": "-3/2 -3/2 -3/2",
        "df/dh1: Q0 W30 dW4": "zero -2 -3/2",
        "df/dh1: Q0 dW3 W40": "zero -1 -1",
        "df/dh1: Q0 dW3 dW4": "zero -2 -1",
        "df/dh1: dQ W30 W40": "zero -2 -2",
        "df/dh1: dQ W30 dW4": "zero -3 -2",
        "df/dh1: dQ dW3 W40": "zero -2 -1",
        "df/dh1: dQ dW3 dW4": "zero ? -1",  # -3 in print; a product of four updates, too noisy to hold it to
    },
    "expert_in": {
        "activation": "0 0 0",
        "init": "0 0 0",
        "propagating": "zero -1/2 0",
        "effective0": "zero -1/2 0",
        "cross": "zero -3/2 0",
        "gradient": "-3/2 -1 -1",
        "weight change": "zero -3/2 -1",
        "df/dh1: experts": "-3/2 -1 -1",
        "df/dh1: A4.1": "-3/2 -3/2 -3/2",
        "df/dh1: A4.2": "zero -2 -3/2",
        "df/dh1: A5.1": "zero -1 -1",
        "df/dh1: A5.2": "zero -2 -1",
        "df/dh1: A6.1": "zero -2 -2",
        "df/dh1: A6.2": "zero -3 -2",
        "df/dh1: E.1": "zero -2 -1",
        "df/dh1: E.2": "zero ? -1",  # -3, as measured with many seeds and samples (-5/2 in print); too noisy with few
    },
    "expert_out": {
        "init": "0 0 0",
        "activation": "0 0 0",
        "propagating": "zero -1/2 0",
        "effective0": "zero 0 0",
        "cross": "zero -1/2 0",
        "h3": "-1/2 0 0",
        "h3: A1": "-1/2 -1/2 -1/2",
        "h3: A2.1": "zero -1 -1/2",
        "h3: A2.2": "zero -1 -1/2",
        "h3: A3": "zero 0 0",
        "h3: D": "zero -1 0",
        "gradient": "-2 -2 -2",
        "weight change": "zero 0 0",
        "df/dh3_i": "-2 -2 -2",
        "df/dh2_i": "-3/2 -1 -1",
        "df/dh2_i: W30 W40": "-3/2 -3/2 -3/2",
        "df/dh2_i: W30 dW4": "zero -2 -3/2",
        "df/dh2_i: dW3 W40": "zero -1 -1",
        "df/dh2_i: dW3 dW4": "zero -2 -1",
        "df/dphi": "-3/2 -1 -1",
        "df/dphi: W30 W40": "-3/2 -3/2 -3/2",
        "df/dphi: W30 dW4": "zero -2 -3/2",
        "df/dphi: dW3 W40": "zero -1 -1",
        "df/dphi: dW3 dW4": "zero -2 -1",
    },
    "readout": {
        "activation": "-1 0 0",
        "init": "-1 -1 -1",
        "propagating": "zero 0 0",
        "effective0": "zero -1 -1",
        "gradient": "-1/2 0 0",
        "weight change": "zero -3/2 -1",
        "df/dh3: W40": "-1 -1 -1",
        "df/dh3: dW4": "zero -3/2 -1",
    },
}

MUP_III: BlockRows = {
    "embedding": {
        "activation": "0 0 0",
        "change": "zero -1/2 ?",
        "gradient": "-3/2 ? ?",
        "weight change": "zero -1/2 ?",
        "df/dh1": "-3/2 ? ?",
    },
    "router": {
        "activation": "0 0 0",
        "init": "0 0 0",
        "gate": "0 0 0",
        "propagating": "zero -1/2 ?",
        "gradient": "-3/2 ? ?",
        "weight change": "zero -3/2 ?",
        "df/dh1: router": "-3/2 ? ?",
        "df/dh1: Q0": "-3/2 ? ?",
        "df/dh1: dQ": "zero -2 ?",
    },
    "expert_in": {
        "init": "0 0 0",
        "propagating": "zero -1/2 ?",
        "effective0": "zero 0 0",
        "cross": "zero -1 ?",
        "gradient": "-2 -2 -2",
        "weight change": "zero -1 -1",
        "df/dh1: experts": "-3/2 ? ?",
        "df/dh1: A4.1": "-3/2 -3/2 -3/2",
        "df/dh1: A4.2": "zero -2 ?",
        "df/dh1: A5.1": "zero -1 -1",
        "df/dh1: A5.2": "zero -2 ?",
        "df/dh1: A6.1": "zero -1 -1",
        "df/dh1: A6.2": "zero -2 ?",
        "df/dh1: E.1": "zero -2 ?",
        "df/dh1: E.2": "zero -3 ?",
    },
    "expert_out": {
        "init": "0 0 0",
        "propagating": "zero 0 0",
        "effective0": "zero 0 0",
        "cross": "zero -1/2 ?",
        "h3: A1": "-1/2 -1/2 -1/2",
        "h3: A2.1": "zero -1 ?",
        "h3: A2.2": "zero 0 0",
        "h3: A3": "zero 0 0",
        "h3: D": "zero -1 ?",
        "gradient": "-2 -2 -2",
        "weight change": "zero -1 -1",
        "df/dh3_i": "-2 -2 -2",
        "df/dh2_i": "-2 -2 -2",
        "df/dh2_i: W30 W40": "-2 -2 -2",
        "df/dh2_i: W30 dW4": "zero -5/2 ?",
        "df/dh2_i: dW3 W40": "zero -2 -2",
        "df/dh2_i: dW3 dW4": "zero -3 ?",
        "df/dphi": "-3/2 ? ?",
    },
    "readout": {
        "init": "-1 -1 -1",
        "propagating": "zero 0 0",
        "effective0": "zero -1 -1",
        "gradient": "-1/2 ? ?",
        "weight change": "zero -3/2 ?",
        "df/dh3: W40": "-1 -1 -1",
        "df/dh3: dW4": "zero -3/2 ?",
    },
}

# MSSP from a zero readout: at t = 1 nothing but W4 has moved. The two regimes differ in a few rows.
_MSSP: BlockRows = {
    "embedding": {
        "activation": "0 0 0",
        "change": "zero zero 0",
        "gradient": "zero -1 -1",
        "weight change": "zero zero 0",
        "df/dh1": "zero -1 -1",
    },
    "router": {
        "activation": "0 0 0",
        "init": "0 0 0",
        "gate": "0 0 0",
        "effective0": "zero zero 0",
        "effective": "zero zero 0",
        "propagating": "zero zero 0",
        "change": "zero zero 0",
        "gradient": "zero -1 -1",
        "weight change": "zero zero -1",
        "df/dh1: router": "zero -1 -1",
        "df/dh1: Q0": "zero -1 -1",
        "df/dh1: dQ": "zero zero -1",
        "df/dh1: Q0 W30 W40": "zero zero zero",
        "df/dh1: Q0 W30 dW4": "zero -1 -1",
        "df/dh1: Q0 dW3 W40": "zero zero zero",
        "df/dh1: Q0 dW3 dW4": "zero zero -1",
        "df/dh1: dQ W30 W40": "zero zero zero",
        "df/dh1: dQ W30 dW4": "zero zero -1",
        "df/dh1: dQ dW3 W40": "zero zero zero",
        "df/dh1: dQ dW3 dW4": "zero zero ?",  # -1 in print; a product of three updates falls by more at these widths
    },
    "expert_in": {
        "activation": "0 0 0",
        "init": "0 0 0",
        "propagating": "zero zero 0",
        "effective0": "zero zero 0",
        "effective": "zero zero 0",
        "cross": "zero zero 0",
        "change": "zero zero 0",
        "weight change": "zero zero -1",
        "df/dh1: experts": "zero -1 -1",
        "df/dh1: A4.1": "zero zero zero",
        "df/dh1: A4.2": "zero -1 -1",
        "df/dh1: A5.1": "zero zero zero",
        "df/dh1: A5.2": "zero zero -1",
        "df/dh1: A6.1": "zero zero zero",
        "df/dh1: A6.2": "zero zero -1",
        "df/dh1: E.1": "zero zero zero",
        "df/dh1: E.2": "zero zero ?",  # -1 in print; a product of three updates falls by more at these widths
    },
    "expert_out": {
        "effective0": "zero zero 0",
        "effective": "zero zero 0",
        "cross": "zero zero 0",
        "h3": "0 0 0",
        "h3: A1": "0 0 0",
        "h3: A2": "zero zero 0",
        "h3: A2.1": "zero zero 0",
        "h3: A2.2": "zero zero 0",
        "h3: A3": "zero zero 0",
        "h3: D": "zero zero 0",
        "gradient": "zero -2 -2",
        "df/dh3_i": "zero -2 -2",
        "df/dphi": "zero -1 -1",
        "df/dphi: W30 W40": "zero zero zero",
        "df/dphi: W30 dW4": "zero -1 -1",
        "df/dphi: dW3 W40": "zero zero zero",
        "df/dphi: dW3 dW4": "zero zero -1",
    },
    "readout": {
        "activation": "zero 0 0",
        "init": "zero zero zero",
        "propagating": "zero zero zero",
        "effective0": "zero 0 0",
        "effective": "zero 0 0",
        "cross": "zero zero 0",
        "gradient": "0 0 0",
        "weight change": "zero -1 -1",
        "df/dh3: W40": "zero zero zero",
        "df/dh3: dW4": "zero -1 -1",
    },
}


def _with(rows: BlockRows, more: BlockRows) -> BlockRows:
    return {role: {**rows[role], **more.get(role, {})} for role in rows}


MSSP_II = _with(
    _MSSP,
    {
        "expert_in": {"gradient": "zero -1 -1"},
        "expert_out": {
            # Never materialized but here: the sum over experts is what stays at 1 (I.9).
            "init": "1/2 1/2 1/2",
            "activation": "1/2 1/2 1/2",
            "propagating": "zero zero 1/2",
            "weight change": "zero zero 0",
            "df/dh2_i": "zero -1 -1",
            "df/dh2_i: W30 W40": "zero zero zero",
            "df/dh2_i: W30 dW4": "zero -1 -1",
            "df/dh2_i: dW3 W40": "zero zero zero",
            "df/dh2_i: dW3 dW4": "zero zero -1",
        },
    },
)
MSSP_III = _with(
    _MSSP,
    {
        "expert_in": {"gradient": "zero -2 -2"},
        "expert_out": {
            "init": "0 0 0",
            "activation": "0 0 0",
            "propagating": "zero zero 0",
            "weight change": "zero zero -1",
            "df/dh2_i": "zero -2 -2",
            "df/dh2_i: W30 W40": "zero zero zero",
            "df/dh2_i: W30 dW4": "zero -2 -2",
            "df/dh2_i: dW3 W40": "zero zero zero",
            "df/dh2_i: dW3 dW4": "zero zero -2",
        },
    },
)
