"""Gates: how router logits become the weights of the active experts. One file per gate; torch is imported by none.

To add a gate, write one file that holds a `Gate` and add its line here. From outside, call `register_gate` in a
plug-in. `hpxfer.testing.gates.GateSuite` holds a gate to the rules.
"""

from hpxfer.model.gates.gate import Gate, SumsOver
from hpxfer.registry import Registry

GATES: Registry[Gate] = Registry(
    "gate",
    {
        "sigmoid": "hpxfer.model.gates.sigmoid:SIGMOID",
        "softmax": "hpxfer.model.gates.softmax:SOFTMAX",
        "normalized_sigmoid": "hpxfer.model.gates.normalized_sigmoid:NORMALIZED_SIGMOID",
        "normalized_softmax": "hpxfer.model.gates.normalized_softmax:NORMALIZED_SOFTMAX",
    },
)
register_gate = GATES.register

__all__ = ["GATES", "Gate", "SumsOver", "register_gate"]
