"""The stacked trainer: many small runs of one shape in one batched model."""
