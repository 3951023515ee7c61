"""Loggers: they show the curves of trials while these train, in TensorBoard, Weights & Biases or MLflow."""
