"""Cross-entropy of an output projection against soft or hard labels, with its gradient, a chunk of rows at a time. Knows no network.

The logits of a large vocabulary are by far the largest thing in training: they exist for one chunk only, and their gradient is written over them.
On the CPU this runs in NumPy, whose exp is some twenty times as fast as MLX's there; elsewhere in MLX. Both give the same numbers.
"""

from typing import Any

import mlx.core as mx
import numpy as np

CHUNK = 512  # rows


def cross_entropy(features: mx.array, weight: mx.array, ids: np.ndarray, probs: np.ndarray, scale: np.ndarray) -> Any:
    """Sum over rows of scale · Σ_j probs_j · -log softmax(features @ weightᵀ)[ids_j], differentiable in ``features`` and ``weight``.

    features (n, width), weight (vocab, width), ids and probs (n, k): the labels; those of probability 0 are ignored, and probs need not sum to one.
    """
    run = _numpy if mx.default_device() == mx.cpu else _mlx
    kept: list[Any] = []

    @mx.custom_function
    def loss(features: mx.array, weight: mx.array) -> Any:
        value, *gradients = run(features, weight, ids, probs.astype(np.float32), scale.astype(np.float32))
        kept[:] = gradients
        return value

    @loss.vjp
    def gradients(primals: Any, cotangent: mx.array, output: mx.array) -> tuple[mx.array, mx.array]:
        return cotangent * kept[0], cotangent * kept[1]

    value: Any = loss(features, weight)
    return value


def _numpy(features: mx.array, weight: mx.array, ids: np.ndarray, probs: np.ndarray, scale: np.ndarray) -> tuple[mx.array, mx.array, mx.array]:
    x, w = np.array(features.astype(mx.float32), copy=False), np.array(weight.astype(mx.float32), copy=False)
    to_x, to_w, total = np.empty_like(x), np.zeros_like(w), 0.0
    for start in range(0, len(x), CHUNK):
        part = slice(start, start + CHUNK)
        rows = np.arange(len(x[part]))[:, None]
        logits = x[part] @ w.T
        logits -= logits.max(axis=1, keepdims=True)
        said = logits[rows, ids[part]]
        np.exp(logits, out=logits)
        norm = logits.sum(axis=1, keepdims=True)
        labels, weights = probs[part] * scale[part, None], scale[part, None]
        total += float((labels * (np.log(norm) - said)).sum())
        logits *= weights * probs[part].sum(axis=1, keepdims=True) / norm
        np.subtract.at(logits, (rows, ids[part]), labels)
        np.matmul(logits, w, out=to_x[part])
        to_w += logits.T @ x[part]
    return mx.array(total, mx.float32), mx.array(to_x), mx.array(to_w)


def _mlx(features: mx.array, weight: mx.array, ids: np.ndarray, probs: np.ndarray, scale: np.ndarray) -> tuple[mx.array, mx.array, mx.array]:
    x, w = features.astype(mx.float32), weight.astype(mx.float32)
    labels = mx.array(probs * scale[:, None])
    names = mx.array(ids.astype(np.int32))
    total, to_x, to_w = mx.array(0.0), [], mx.zeros(w.shape)
    for start in range(0, len(x), CHUNK):
        part = slice(start, start + CHUNK)
        logits = x[part] @ w.T
        norm = mx.logsumexp(logits, axis=-1, keepdims=True)
        total = total + (labels[part] * (norm - mx.take_along_axis(logits, names[part], axis=-1))).sum()
        slope = mx.exp(logits - norm) * labels[part].sum(axis=-1, keepdims=True)
        slope = slope.at[mx.arange(len(slope))[:, None], names[part]].add(-labels[part])
        to_x.append(slope @ w)
        to_w = to_w + slope.T @ x[part]
        mx.eval(total, to_x[-1], to_w)
    return total, mx.concatenate(to_x), to_w


def projected(head: np.ndarray, hidden: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """An output projection (vocab, n) cut to (vocab, width), and what turns a hidden state into what it reads, (n, width).

    head @ h is nearest to cut @ (h @ reader) for hidden states like those given; what is read has a mean square of 1.
    """
    moment = hidden.T.astype(np.float64) @ hidden / len(hidden)
    values, vectors = np.linalg.eigh(moment)
    values = np.maximum(values, 1e-6 * values[-1])
    root, inverse = (vectors * values**power @ vectors.T for power in (0.5, -0.5))
    _, directions = np.linalg.eigh(root @ (head.T @ head) @ root)
    chosen = directions[:, ::-1][:, :width]
    cut, reader = head @ (root @ chosen), inverse @ chosen
    missing = [(0, 0), (0, max(0, width - cut.shape[1]))]
    return np.pad(cut, missing).astype(np.float32), np.pad(reader, missing).astype(np.float32)
