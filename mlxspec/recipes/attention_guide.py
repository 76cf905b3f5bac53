"""For training: shows a model where in the text to look. With it the symbol to be named next was found after 150 steps, without it not in 500."""

import mlx.core as mx
import numpy as np

from mlxspec.audio.codes.layout import Layout

LAYERS = (1, 2, 3)
HEADS = 2  # the first ones: for the symbol to be named next, and for the one after it
LEAST = 1e-3


def places(inputs: mx.array, layout: Layout) -> mx.array:
    """For each token that is read where the symbol stands that is to be named next: in the text before the start, in the order of the names."""
    ids = np.array(inputs)
    naming = np.isin(ids, list(layout.names)) & (np.cumsum(ids == layout.start, axis=1) > 0)
    last = (ids == layout.start).argmax(axis=1) - 1
    return mx.array(np.minimum(np.cumsum(naming, axis=1), last[:, None]))


class Guide:
    """Draws some heads to those symbols: a loss of their own, nats by which they look elsewhere. ``see`` is shown each layer's weights in turn."""

    def __init__(self, place: mx.array, counted: mx.array) -> None:
        self._places = [mx.minimum(place + ahead, place.max(axis=1, keepdims=True)) for ahead in range(HEADS)]
        self._counted = counted
        self._layer, self._losses = 0, list[mx.array]()

    def see(self, weights: mx.array) -> None:
        if self._layer in LAYERS:
            for head, place in enumerate(self._places[: weights.shape[1]]):
                there = mx.take_along_axis(weights[:, head], place[..., None], axis=-1)[..., 0]
                self._losses.append((-mx.log(there + LEAST) * self._counted).sum() / self._counted.sum())
        self._layer += 1

    def loss(self) -> mx.array:
        """Nats, of all heads that were seen."""
        return sum(self._losses, start=mx.array(0.0)) / max(1, len(self._losses))
