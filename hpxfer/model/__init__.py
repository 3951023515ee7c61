"""Models: the families, the gates, and what any stacked model is made of (parameters, flat storage, draws, cost)."""
