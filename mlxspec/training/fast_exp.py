"""For training on a CPU, where MLX's exp takes some 25 ns an element: a polynomial that takes 3, in softmax, SwiGLU and cross entropy.

exp(x) is a Taylor polynomial of x / 256, squared eight times. What is trained, or writes the text, is the same stock model; with a GPU nothing of
this is used.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx_lm.models import llama

HALVINGS = 8
LOWEST, HIGHEST = -80.0, 40.0


def on_cpu() -> bool:
    return bool(mx.default_device() == mx.cpu)


@mx.compile
def exp(x: mx.array) -> mx.array:
    """Of numbers up to HIGHEST; below LOWEST as if at it. Right to 3e-5 near 0, to 4e-4 at the ends."""
    y = mx.maximum(x, LOWEST) * (0.5**HALVINGS)
    result = 1 + y * (1 + y * (1 / 2 + y * (1 / 6 + y * (1 / 24 + y * (1 / 120)))))
    for _ in range(HALVINGS):
        result = result * result
    return result


def _softmax(x: mx.array) -> mx.array:
    parts = exp(x - x.max(axis=-1, keepdims=True))
    return parts / parts.sum(axis=-1, keepdims=True)


def _sigmoid(x: mx.array) -> mx.array:
    return 1 / (1 + exp(mx.minimum(-x, HIGHEST)))


def _logsumexp(x: mx.array) -> mx.array:
    highest = x.max(axis=-1, keepdims=True)
    return highest + mx.log(exp(x - highest).sum(axis=-1, keepdims=True))


def _softmax_slope(primals: Any, cotangent: mx.array, output: mx.array) -> mx.array:
    scaled = output * cotangent
    return scaled - output * scaled.sum(axis=-1, keepdims=True)


def _sigmoid_slope(primals: Any, cotangent: mx.array, output: mx.array) -> mx.array:
    return cotangent * output * (1 - output)


def _logsumexp_slope(primals: Any, cotangent: mx.array, output: mx.array) -> mx.array:
    return cotangent * exp(primals - output)


softmax: Any = mx.custom_function(_softmax)  # over the last axis, as its logsumexp
softmax.vjp(_softmax_slope)
sigmoid: Any = mx.custom_function(_sigmoid)
sigmoid.vjp(_sigmoid_slope)
cheap_logsumexp: Any = mx.custom_function(_logsumexp)
cheap_logsumexp.vjp(_logsumexp_slope)


def logsumexp(x: mx.array) -> mx.array:
    """Over the last axis, which stays."""
    result: mx.array = cheap_logsumexp(x) if on_cpu() else mx.logsumexp(x, axis=-1, keepdims=True)
    return result


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    return gate * sigmoid(gate) * x


def attention(seen: Callable[[mx.array], None]) -> Callable[..., Any]:
    """mlx-lm's, without quantised caches and sinks. ``seen`` is shown the weights, (n, heads, length, length of all)."""

    def attend(queries: mx.array, keys: mx.array, values: mx.array, cache: Any = None, scale: float = 1.0, mask: Any = None) -> Any:
        n, heads, length, width = queries.shape
        groups, whole = keys.shape[1:3]
        scores = (queries * scale).reshape(n, groups, -1, width) @ keys.swapaxes(-1, -2)
        scores = scores.reshape(n, heads, length, whole)
        if isinstance(mask, str):  # causal
            scores = scores + mx.triu(mx.full((length, whole), -1e9), k=whole - length + 1)
        elif mask is not None:
            scores = mx.where(mask, scores, -1e9) if mask.dtype == mx.bool_ else scores + mask
        weights = softmax(scores) if on_cpu() else mx.softmax(scores, axis=-1)
        seen(weights)
        return (weights.reshape(n, groups, -1, whole) @ values).reshape(n, heads, length, width)

    return attend


@contextmanager
def in_llama(seen: Callable[[mx.array], None] | None = None) -> Iterator[None]:
    """Meanwhile stock Llama on a CPU uses these. With ``seen`` its attention is this one anywhere, and shows its weights, layer by layer."""
    stock = llama.swiglu, llama.scaled_dot_product_attention
    if on_cpu():
        llama.swiglu = swiglu
    if on_cpu() or seen is not None:
        llama.scaled_dot_product_attention = attention(seen or (lambda _: None))
    try:
        yield
    finally:
        llama.swiglu, llama.scaled_dot_product_attention = stock
