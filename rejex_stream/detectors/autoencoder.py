"""The autoencoder: trained by PyTorch, scored without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rejex_stream.detectors.rowwise import RowByRow, affine, fit_row_by_row, row_sum
from rejex_stream.errors import DetectorError
from rejex_stream.types import FloatArray

__all__ = ["Autoencoder", "fit_autoencoder"]


@dataclass(frozen=True, slots=True)
class Autoencoder:
    """Distance between a row and its reconstruction, by ReLU layers in double precision.

    Attributes
    ----------
    centre, spread
        Standardisation, shape (d,).
    layers
        (weights (a, b), offset (b,)) of each layer; all but the last end in a ReLU.
    training_scores
        Shape (n,); in sample.
    """

    centre: FloatArray
    spread: FloatArray
    layers: tuple[tuple[FloatArray, FloatArray], ...]
    training_scores: FloatArray

    def score(self, X: FloatArray) -> FloatArray:
        """Score rows X of shape (m, d); as many multiplications a row as there are weights."""
        row = (X - self.centre) / self.spread
        hidden = row
        for weights, offset in self.layers[:-1]:
            hidden = np.maximum(affine(hidden, weights, offset), 0.0)
        gap = row - affine(hidden, *self.layers[-1])
        distance: FloatArray = np.sqrt(row_sum(gap * gap))
        return distance


def fit_autoencoder(make: Callable[[], Any], X: FloatArray) -> Autoencoder | RowByRow:
    """Fit PyOD's AutoEncoder on X of shape (n, d).

    Matrix kernels change their order of additions with the size of a batch, so the trained
    weights are taken out and applied one column at a time. Activations other than ReLU are
    scored by PyTorch, row by row.
    """
    model: Any = None

    def made() -> Any:  # noqa: ANN401 - PyOD is untyped
        nonlocal model
        model = make()
        if len(X) < model.batch_size:
            raise DetectorError(
                f"An autoencoder with batch_size = {model.batch_size} learns nothing from "
                f"{len(X)} rows; fit on more rows or lower batch_size."
            )
        return model

    fitted = fit_row_by_row(made, X)
    if model.hidden_activation_name != "relu" or model.use_compile:
        return fitted
    d = X.shape[1]
    centre, spread = np.zeros(d), np.ones(d)
    if model.preprocessing:
        centre, spread = model.X_mean, model.X_std + 1e-8
    blocks = [*model.model.encoder, *model.model.decoder]
    layers = tuple(_layer(block) for block in blocks)
    scorer = Autoencoder(centre, spread, layers, np.empty(0))
    return replace(scorer, training_scores=scorer.score(X))


def _layer(block: Any) -> tuple[FloatArray, FloatArray]:  # noqa: ANN401 - a torch module
    """Weights and offset of a linear layer, with its batch normalisation folded in."""
    linear = getattr(block, "linear", block)
    weights = linear.weight.detach().cpu().double().numpy().T
    offset = linear.bias.detach().cpu().double().numpy()
    if getattr(block, "batch_norm", False):
        mean, variance, gain, bias = (
            t.detach().cpu().double().numpy()
            for t in (block.bn.running_mean, block.bn.running_var, block.bn.weight, block.bn.bias)
        )
        factor = gain / np.sqrt(variance + block.bn.eps)
        weights, offset = weights * factor, (offset - mean) * factor + bias
    return np.ascontiguousarray(weights), offset
