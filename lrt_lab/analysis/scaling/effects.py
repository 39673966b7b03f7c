"""What changes a law's effective size, effective data or adds a term: one class per idea.

An effect's value is added to ln N or to ln D, or is the logarithm of one more term of the loss.
Every function takes parameters (..., p), gives values (..., n) and derivatives (..., p, n).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from lrt_lab.analysis.scaling.run_table import Runs

Target = Literal["size", "data", "term"]
Values = tuple[np.ndarray, np.ndarray]
# ln of .05 to 50 passes
TAU = (-3.0, 3.9)


@dataclass(frozen=True)
class Parameter:
    """A fitted number: its name, whether its logarithm is fitted, where a search starts and what it
    may be (logarithms, where those are fitted). Outside a law says nothing that runs could show.
    """

    name: str
    log: bool
    starts: tuple[float, ...]
    limits: tuple[float, float]


class Effect(Protocol):
    """One part of a law."""

    @property
    def target(self) -> Target:
        """What its value is added to."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What is fitted."""

    def __call__(self, theta: np.ndarray, runs: Runs) -> Values:
        """Value and derivatives."""


@dataclass(frozen=True)
class IsoRecurrence:
    """N_once + K^phi N_rec = N (1 - f + f K^phi), f the recurrent share (arXiv:2604.21106).

    phi = 1: a pass is worth a layer of new parameters; 0: nothing.
    """

    target: Target = "size"
    parameters: tuple[Parameter, ...] = (Parameter("phi", False, (0.0, 0.5), (-3.0, 3.0)),)

    def __call__(self, theta: np.ndarray, runs: Runs) -> Values:
        ln_k = np.log(runs.passes)
        again = runs.recurrent * np.exp(theta[..., :1] * ln_k)
        total = 1 - runs.recurrent + again
        return np.log(total), (again * ln_k / total)[..., None, :]


@dataclass(frozen=True)
class ParScale:
    """N (1 + k ln K): the logarithmic worth of parallel streams (ParScale)."""

    target: Target = "size"
    parameters: tuple[Parameter, ...] = (Parameter("k", False, (0.0, 0.3), (-10.0, 100.0)),)

    def __call__(self, theta: np.ndarray, runs: Runs) -> Values:
        ln_k = np.log(runs.passes)
        total = 1 + theta[..., :1] * ln_k
        return np.log(total), (ln_k / total)[..., None, :]


@dataclass(frozen=True)
class SaturatingSize:
    """N (1 + kappa (1 - exp(-(K - 1) / tau)))."""

    target: Target = "size"
    parameters: tuple[Parameter, ...] = (
        Parameter("kappa", False, (0.0, 0.5), (-1.0, 100.0)),
        Parameter("tau", True, (0.0,), TAU),
    )

    def __call__(self, theta: np.ndarray, runs: Runs) -> Values:
        kappa, tau = theta[..., :1], np.exp(theta[..., 1:2])
        more = (runs.passes - 1) / tau
        left = np.exp(-more)
        total = 1 + kappa * (1 - left)
        slopes = np.stack([(1 - left) / total, -kappa * left * more / total], axis=-2)
        return np.log(total), slopes


@dataclass(frozen=True)
class SaturatingTerm:
    """C exp(-(K - 1) / tau), added to the loss: what further passes take away saturates."""

    target: Target = "term"
    parameters: tuple[Parameter, ...] = (
        Parameter("C", True, (-3.0,), (-20.0, 20.0)),
        Parameter("tau", True, (0.0,), TAU),
    )

    def __call__(self, theta: np.ndarray, runs: Runs) -> Values:
        more = (runs.passes - 1) / np.exp(theta[..., 1:2])
        slopes = np.stack(np.broadcast_arrays(np.ones_like(more), more), axis=-2)
        return theta[..., :1] - more, slopes


@dataclass(frozen=True)
class Multiplier:
    """m N, or m D, for the runs of one model: L_model(N, D) = L_base(m_N N, m_D D)."""

    target: Target
    model: int
    name: str

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The multiplier, by its logarithm."""
        return (Parameter(self.name, True, (0.0,), (-7.0, 7.0)),)

    def __call__(self, theta: np.ndarray, runs: Runs) -> Values:
        here = (runs.model == self.model).astype(float)
        value = theta[..., :1] * here
        return value, np.broadcast_to(here, value.shape)[..., None, :]


@dataclass(frozen=True)
class Repetition:
    """D_eff = U + U R* (1 - exp(-R / R*)): a corpus of U tokens seen 1 + R times.

    The form of Muennighoff et al. (data-constrained scaling) for D.
    """

    target: Target = "data"
    parameters: tuple[Parameter, ...] = (Parameter("R*", True, (2.0,), (-3.0, 7.0)),)

    def __call__(self, theta: np.ndarray, runs: Runs) -> Values:
        again = np.maximum(runs.epochs - 1, 0.0)
        star = np.exp(theta[..., :1])
        left = np.exp(-again / star)
        total = 1 + star * (1 - left)
        slope = (star * (1 - left) - again * left) / total
        return np.log(total) - np.log1p(again), slope[..., None, :]
