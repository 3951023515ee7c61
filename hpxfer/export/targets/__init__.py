"""The registry of export targets. To add one, write a module with its row and add one line here."""

from hpxfer.export.target import ExportTarget
from hpxfer.registry import Registry

EXPORT_TARGETS: Registry[ExportTarget] = Registry(
    "export target",
    {
        "megatron": "hpxfer.export.targets.megatron:MEGATRON",
        "torchtitan": "hpxfer.export.targets.torchtitan:TORCHTITAN",
        "olmo-core": "hpxfer.export.targets.olmo_core:OLMO_CORE",
        "transformers": "hpxfer.export.targets.transformers:TRANSFORMERS",
        "torch": "hpxfer.export.targets.torch:TORCH",
        "json": "hpxfer.export.targets.json:JSON",
    },
)


def register_export_target(target: ExportTarget) -> ExportTarget:
    """Register a target of your own under its name, and return it. Raise HpxferError if the name is taken."""
    return EXPORT_TARGETS.register(target)


__all__ = ["EXPORT_TARGETS", "register_export_target"]
