"""Training: the stacked trainer, which trains many small models of one shape as one batched model."""
