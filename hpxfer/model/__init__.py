"""The built-in stacked GPT: its tensors and cost (layout, cost; no torch), its start (draws), its run (gpt, ffn)."""
