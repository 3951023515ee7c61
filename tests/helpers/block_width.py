"""What is predicted for the minimal blocks where the width grows at a fixed number of experts.

The rows are written as in `block_mssp`. MSSP prints no such table for its regime I: the rows follow from 3.8 (all
pieces keep their size), C (the router) and 3.7 (gradients). Those with a single matrix per expert follow from Why
Routers Freeze, Propositions 2 to 4, Remarks 25 to 27, and the chain rule.
"""

from __future__ import annotations

from block_mssp import MSSP_III, BlockRows

# muP, from a random router and a random readout: gates that start at a fluctuation width^-1/2.
MUP_I: BlockRows = {
    "embedding": {
        "activation": "0 0 0",
        "change": "zero 0 0",
        "gradient": "-1 -1 -1",
        "weight change": "zero 0 0",
        "df/dh1": "-1 -1 -1",
    },
    "router": {
        "init": "-1/2 -1/2 -1/2",
        "propagating": "zero -1/2 ?",
        "effective0": "zero -1/2 ?",
        "effective": "zero -1/2 ?",
        "dL/dpsi": "-1/2 ? ?",
        "gradient": "-1/2 ? ?",
        "weight change": "zero -3/2 ?",
    },
    "expert_in": {
        "init": "0 0 0",
        "activation": "0 0 0",
        "propagating": "zero 0 0",
        "effective0": "zero 0 0",
        "effective": "zero 0 0",
        "gradient": "-1 -1 -1",
        "weight change": "zero -1 -1",
        "df/dh1: experts": "-1 -1 -1",
        "df/dh1: A4.1": "-1 -1 -1",
        "df/dh1: A4.2": "zero -1 -1",
        "df/dh1: A5.1": "zero -1 -1",
        "df/dh1: A5.2": "zero ? ?",
        "df/dh1: A6.1": "zero -1 -1",
        "df/dh1: A6.2": "zero ? ?",
        "df/dh1: E.1": "zero ? ?",
    },
    "expert_out": {
        "init": "0 0 0",
        "activation": "0 0 0",
        "propagating": "zero 0 0",
        "effective0": "zero 0 0",
        "effective": "zero 0 0",
        "h3": "0 0 0",
        "h3: A1": "0 0 0",
        "h3: A2": "zero 0 0",
        "h3: A2.1": "zero 0 0",
        "h3: A2.2": "zero 0 0",
        "h3: A3": "zero 0 0",
        "gradient": "-1 -1 -1",
        "weight change": "zero -1 -1",
        "df/dh3_i": "-1 -1 -1",
        "df/dh2_i": "-1 -1 -1",
        "df/dh2_i: W30 W40": "-1 -1 -1",
        "df/dh2_i: W30 dW4": "zero -1 -1",
        "df/dh2_i: dW3 W40": "zero -1 -1",
        "df/dh2_i: dW3 dW4": "zero ? ?",
        "df/dphi": "-1/2 ? ?",
        "df/dphi: W30 dW4": "zero 0 0",
        "df/dphi: dW3 W40": "zero 0 0",
    },
    "readout": {
        "activation": "-1/2 ? ?",
        "init": "-1/2 -1/2 -1/2",
        "propagating": "zero 0 0",
        "effective0": "zero 0 0",
        "gradient": "0 0 0",
        "weight change": "zero -1 -1",
        "df/dh3: W40": "-1 -1 -1",
        "df/dh3: dW4": "zero -1 -1",
    },
}

# MSSP, from a zero router and a zero readout.
MSSP_I: BlockRows = {
    **MSSP_III,
    "router": {
        **dict.fromkeys(("init", "propagating"), "zero zero zero"),
        **dict.fromkeys(("activation", "change", "effective0", "effective"), "zero zero 0"),
        "gate": "0 0 0",
        "gradient": "zero 0 0",
        "weight change": "zero zero -1",
        "df/dh1: Q0": "zero zero zero",
        "df/dh1: dQ": "zero zero -1",
    },
    "expert_in": {**MSSP_III["expert_in"], "gradient": "zero -1 -1"},
    "expert_out": {
        **MSSP_III["expert_out"],
        **dict.fromkeys(("gradient", "df/dh3_i", "df/dh2_i", "df/dh2_i: W30 dW4"), "zero -1 -1"),
        "df/dh2_i: dW3 dW4": "zero zero -1",
        "df/dphi": "zero 0 0",
        "df/dphi: W30 dW4": "zero 0 0",
        "df/dphi: dW3 dW4": "zero zero 0",
    },
}

# muP with a single matrix per expert. `one_matrix` adds the rows of the router.
ONE: BlockRows = {
    "embedding": {"activation": "0 0 0", "change": "zero 0 0", "gradient": "-1 -1 -1"},
    "expert_out": {
        "init": "0 0 0",
        "activation": "0 0 0",
        "propagating": "zero 0 0",
        "effective": "zero 0 0",
        "h3": "0 0 0",
        "h3: A1": "0 0 0",
        "h3: A2": "zero 0 0",
        "h3: A3": "zero 0 0",
        "gradient": "-1 -1 -1",
    },
    "readout": {"activation": "-1/2 ? ?", "gradient": "0 0 0", "df/dh3: W40": "-1 -1 -1", "df/dh3: dW4": "zero -1 -1"},
}
# The same from a zero readout. At t = 1 only the readout has changed.
ONE_ZERO_READOUT: BlockRows = {
    "embedding": {"activation": "0 0 0", "change": "zero zero 0", "gradient": "zero -1 -1"},
    "expert_out": {
        **ONE["expert_out"],
        **dict.fromkeys(("propagating", "effective", "h3: A2", "h3: A3"), "zero zero 0"),
        "gradient": "zero -1 -1",
    },
    "readout": {"activation": "zero 0 0", "gradient": "0 0 0", "df/dh3: W40": "zero zero zero"},
}

# Under NTP what is learned fades as width^-1/2, except in the router's logits and f (derived; no paper prints it).
NTP: BlockRows = {
    "embedding": {"activation": "0 0 0", "change": "zero -1/2 -1/2"},
    "router": {"init": "0 0 0", "effective": "zero 0 0", "propagating": "zero 0 0"},
    "expert_in": {"init": "0 0 0", "effective": "zero -1/2 -1/2", "propagating": "zero -1/2 -1/2"},
    "expert_out": {"init": "0 0 0", "effective": "zero -1/2 -1/2", "propagating": "zero -1/2 -1/2"},
    "readout": {"effective": "zero 0 0"},
}

# What a control is held to.
FLAT: BlockRows = {
    "embedding": {"activation": "0 0 0", "change": "0 0 0"},
    "router": dict.fromkeys(("activation", "effective", "propagating", "change"), "0 0 0"),
    "expert_in": dict.fromkeys(("activation", "effective", "propagating", "change"), "0 0 0"),
    "expert_out": dict.fromkeys(("activation", "effective", "propagating", "change", "h3"), "0 0 0"),
    "readout": dict.fromkeys(("activation", "effective", "change"), "0 0 0"),
}


def one_matrix(*, soft_softmax: bool, zero_router: bool, zero_readout: bool, benign: bool) -> BlockRows:
    """Return the rows of a block with a single matrix per expert, if no bias breaks the symmetry of its experts.

    At t = 1 no gate has learned anything of order 1. With softmax over all experts, only the fluctuation width^-1/2
    ever remains (Remarks 25, 26). A sigmoid gate and top-k start to learn later, at first beside the larger
    fluctuation, so that their exponent settles after some steps. `benign` means d = 1/2 in the router's eps, under Adam
    (Remark 27).
    """
    later = "-1/2" if soft_softmax else "?"
    moved = ("0 0" if benign else f"-1/2 {later}").split()
    weight = ("-1 -1" if benign else f"-3/2 {'-3/2' if soft_softmax else '?'}").split()
    if zero_readout:
        router = {
            "effective": f"zero zero {moved[1]}",
            "dL/dpsi": f"zero -1/2 {later}",
            "gradient": f"zero -1/2 {later}",
            "weight change": f"zero zero {weight[1]}",
        }
    else:
        router = {
            "effective": f"zero {moved[0]} {moved[1]}",
            "dL/dpsi": f"-1/2 {'-1/2' if soft_softmax else '?'} {later}",
            "gradient": f"-1/2 {'-1/2' if soft_softmax else '?'} {later}",
            "weight change": f"zero {weight[0]} {weight[1]}",
        }
    first = "zero zero -1/2" if zero_readout else "zero -1/2 -1/2"
    router["init"] = "zero zero zero" if zero_router else "-1/2 -1/2 -1/2"
    router["propagating"] = "zero zero zero" if zero_router else first if soft_softmax else first[:-4] + "?"
    if soft_softmax and not benign:
        router["change"] = router["effective"]  # both of its parts are the fluctuation
    return {**(ONE_ZERO_READOUT if zero_readout else ONE), "router": router}
