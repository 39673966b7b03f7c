"""Laws of the loss in size and data: L = E + A / N_eff^alpha + B / D_eff^beta (+ further terms).

A law is this base with effects (`effects`) on N_eff and D_eff. It works with centred logarithms:
theta = (a, b, e, alpha, beta, effects...), a = ln A - alpha mean ln N, b = ln B - beta mean ln D,
e = ln E, and ln L = logsumexp of its terms. Uncentred, A and alpha correlate at .999 and an
optimiser stops anywhere along that ridge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from lrt_lab.analysis.scaling.effects import (
    Effect,
    IsoRecurrence,
    Multiplier,
    Parameter,
    ParScale,
    Repetition,
    SaturatingSize,
    SaturatingTerm,
    Target,
)
from lrt_lab.analysis.scaling.run_table import Runs

BASE = ("A", "B", "E", "alpha", "beta")
EXPONENTS = (1e-3, 10.0)
PASSES: Mapping[str, tuple[Effect, ...]] = {
    "none": (),
    "iso-recurrence": (IsoRecurrence(),),
    "parscale": (ParScale(),),
    "saturating size": (SaturatingSize(),),
    "saturating term": (SaturatingTerm(),),
}


@dataclass(frozen=True)
class Centre:
    """Mean ln N and mean ln D of the runs that a law was fitted to."""

    size: float
    data: float

    @staticmethod
    def of(runs: Runs) -> Centre:
        """Of these runs."""
        return Centre(float(np.log(runs.size).mean()), float(np.log(runs.tokens).mean()))


@dataclass(frozen=True)
class Law:
    """A named law: the base and its effects."""

    name: str
    effects: tuple[Effect, ...] = ()

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The effects' parameters, in theta's order after the base's five."""
        return tuple(p for effect in self.effects for p in effect.parameters)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all parameters in theta's order."""
        return (*BASE, *(p.name for p in self.parameters))

    def __len__(self) -> int:
        return len(BASE) + len(self.parameters)

    def log_loss(
        self, theta: np.ndarray, runs: Runs, centre: Centre
    ) -> tuple[np.ndarray, np.ndarray]:
        """ln L (..., n) and its derivatives in theta (..., P, n)."""
        a, b, e, alpha, beta = (theta[..., i : i + 1] for i in range(5))
        x, z = self.sizes(theta, runs, centre), self.data(theta, runs, centre)
        terms = [a - alpha * x, b - beta * z, np.broadcast_to(e, x.shape)]
        found = [(effect, *self._call(effect, theta, runs)) for effect in self.effects]
        terms += [value for effect, value, _ in found if effect.target == "term"]
        stacked = np.stack(np.broadcast_arrays(*terms))
        top = stacked.max(axis=0)
        shares = np.exp(stacked - top)
        total = shares.sum(axis=0)
        shares /= total
        slopes = [shares[0], shares[1], shares[2], -shares[0] * x, -shares[1] * z]
        others = iter(shares[3:])
        weight = {"size": -alpha * shares[0], "data": -beta * shares[1]}
        for effect, _, derivative in found:
            factor = next(others) if effect.target == "term" else weight[effect.target]
            slopes += [factor * derivative[..., i, :] for i in range(derivative.shape[-2])]
        return top + np.log(total), np.stack(np.broadcast_arrays(*slopes), axis=-2)

    def limits(self) -> np.ndarray:
        """Lower and upper limit of every entry of theta, (2, P)."""
        free = [(-50.0, 50.0)] * 3 + [EXPONENTS] * 2
        return np.array([*free, *(parameter.limits for parameter in self.parameters)]).T

    def sizes(self, theta: np.ndarray, runs: Runs, centre: Centre) -> np.ndarray:
        """Centred ln N_eff (..., n)."""
        return self._shifted("size", np.log(runs.size) - centre.size, theta, runs)

    def data(self, theta: np.ndarray, runs: Runs, centre: Centre) -> np.ndarray:
        """Centred ln D_eff (..., n)."""
        return self._shifted("data", np.log(runs.tokens) - centre.data, theta, runs)

    def floor(self, theta: np.ndarray, runs: Runs) -> np.ndarray:
        """The loss (...,) that no size and no data takes away, at the passes of the first run."""
        terms = [np.exp(theta[..., 2])]
        for effect in self.effects:
            if effect.target == "term":
                terms.append(np.exp(self._call(effect, theta, runs)[0][..., 0]))
        return np.sum(terms, axis=0)

    def natural(self, theta: np.ndarray, centre: Centre) -> np.ndarray:
        """A, B, E, alpha, beta and the effects' parameters in their own units, (..., P)."""
        found = np.array(theta, dtype=float)
        found[..., 0] = np.exp(theta[..., 0] + theta[..., 3] * centre.size)
        found[..., 1] = np.exp(theta[..., 1] + theta[..., 4] * centre.data)
        found[..., 2] = np.exp(theta[..., 2])
        for i, parameter in enumerate(self.parameters, len(BASE)):
            if parameter.log:
                found[..., i] = np.exp(theta[..., i])
        return found

    def theta(self, natural: Mapping[str, float], centre: Centre) -> np.ndarray:
        """The inverse of `natural`, from values by name."""
        logs = {p.name for p in self.parameters if p.log}
        found = np.array([np.log(v) if k in logs else v for k, v in self._ordered(natural)])
        found[0] = np.log(found[0]) - found[3] * centre.size
        found[1] = np.log(found[1]) - found[4] * centre.data
        found[2] = np.log(found[2])
        return found

    def _ordered(self, natural: Mapping[str, float]) -> Iterator[tuple[str, float]]:
        return ((name, float(natural[name])) for name in self.names)

    def _shifted(
        self, target: Target, value: np.ndarray, theta: np.ndarray, runs: Runs
    ) -> np.ndarray:
        value = np.broadcast_to(value, (*theta.shape[:-1], len(runs)))
        for effect in self.effects:
            if effect.target == target:
                value = value + self._call(effect, theta, runs)[0]
        return value

    def _call(self, effect: Effect, theta: np.ndarray, runs: Runs) -> tuple[np.ndarray, np.ndarray]:
        return effect(theta[..., self._place(effect)], runs)

    def _place(self, wanted: Effect) -> slice:
        start = len(BASE)
        for effect in self.effects:
            if effect is wanted:
                break
            start += len(effect.parameters)
        return slice(start, start + len(wanted.parameters))


def law(
    passes: str = "none", models: int = 1, repetition: bool = False, multipliers: str = "size data"
) -> Law:
    """A law by its parts.

    Args:
        passes: how K enters, a key of `PASSES`.
        models: how many models share E, alpha and beta; each but the baseline gets multipliers.
        multipliers: "size", "data" or "size data".
        repetition: whether repeated data counts less.
    """
    found = list(PASSES[passes])
    for model in range(1, models):
        tail = "" if models == 2 else f" {model}"
        if "size" in multipliers:
            found.append(Multiplier("size", model, f"m_N{tail}"))
        if "data" in multipliers:
            found.append(Multiplier("data", model, f"m_D{tail}"))
    parts = ["chinchilla" if passes == "none" else passes]
    if models > 1:
        parts.append({"size": "m_N", "data": "m_D"}.get(multipliers, "m_N and m_D"))
    parts += ["repetition"] if repetition else []
    return Law(" + ".join(parts), (*found, *([Repetition()] if repetition else [])))
