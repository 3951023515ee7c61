"""Two hidden layers under Adam, in numpy alone. In the arm of power 1 the LR of wide inputs falls as 1/width."""

import numpy as np


def train(trial):
    rng, width, lr = np.random.default_rng(trial.seed), trial.shape["width"], trial.hps["lr"]
    wide_lr = lr * (trial.base_shape["width"] / width) ** trial.args["power"]  # the same at the base in both arms
    w = [rng.normal(0, n**-0.5, (n, m)) for n, m in ((4, width), (width, width))] + [np.zeros((width, 1))]
    mean, square = [0.0] * 3, [0.0] * 3
    for step in range(trial.steps):
        x = rng.normal(size=(128, 4))
        h = np.maximum(x @ w[0], 0)
        k = np.maximum(h @ w[1], 0)
        error = k @ w[2] - np.sin(2 * x).mean(axis=1, keepdims=True) * 2
        trial.report(step, np.mean(error**2))
        dk = error @ w[2].T * (k > 0)
        for i, grad in enumerate((x.T @ (dk @ w[1].T * (h > 0)), h.T @ dk, k.T @ error)):
            mean[i], square[i] = 0.9 * mean[i] + 0.1 * grad, 0.95 * square[i] + 0.05 * grad**2
            w[i] -= (wide_lr if i else lr) * (1 - step / trial.steps) * mean[i] / (np.sqrt(square[i]) + 1e-9)
