"""The losses that a sweep may be judged by, and the column of a stored trial that holds each."""

from __future__ import annotations

LOSS_COLUMNS = {"validation": "validation_loss_nats", "final_window": "final_window_loss_nats"}
