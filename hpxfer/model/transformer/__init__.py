"""What the transformers of several families have in common: tensors of a block, its passes, and what they cost."""
