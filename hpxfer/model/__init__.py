"""The built-in stacked GPT-MoE: what it is made of (layout, cost; no torch) and how it runs (gpt, init)."""
