"""The coordinate check of a user's own `nn.Module`."""
