"""The trained weights of a trial, as a model of `transformers` or in a safetensors file of our own."""
