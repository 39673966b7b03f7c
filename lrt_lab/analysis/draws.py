"""Random draws that depend on nothing but a seed and a purpose: adding one never shifts another."""

from __future__ import annotations

import hashlib

import numpy as np

NOISES = ("normal", "t4", "skewed")


def generator(seed: int, *purpose: object) -> np.random.Generator:
    """A generator of its own for every seed and purpose."""
    words = "/".join(map(str, (seed, *purpose)))
    digest = hashlib.sha256(words.encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "big")))


def noise(kind: str, shape: tuple[int, ...], draws: np.random.Generator) -> np.ndarray:
    """Mean 0, variance 1: normal, Student t with 4 degrees of freedom, or a centred exponential."""
    if kind == "normal":
        return draws.standard_normal(shape)
    if kind == "t4":
        # the variance of t with 4 degrees of freedom is 2
        return draws.standard_t(4, shape) / np.sqrt(2)
    if kind == "skewed":
        return draws.standard_exponential(shape) - 1
    raise ValueError(f"unknown noise {kind!r}; known are {', '.join(NOISES)}")
