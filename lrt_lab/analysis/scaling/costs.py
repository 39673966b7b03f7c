"""What a model costs to train and to use, as functions of its size; and the least total cost of a
target loss.

A price is what one token costs in any unit: FLOPs, seconds or bytes. To reach loss l with size N a
model needs D(N) tokens, so that deploying it for u output tokens costs

    C(N) = D(N) train(N) + u (decode(N) + ratio prefill(N)),

ratio prompt tokens being read for every output token. The least C over N is the model's cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lrt_lab.analysis.scaling.fitting import Fit
from lrt_lab.analysis.scaling.run_table import runs

# cost per token at sizes N, of the same shape
Price = Callable[[np.ndarray], np.ndarray]

# ln of x = alpha (ln N - ln of the smallest size that reaches the target): first a grid, then a
# golden section inside the best cell
GRID = np.linspace(np.log(1e-3), np.log(20.0), 32)
SECTIONS = 26
GOLDEN = (np.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Deployment:
    """One model as it is trained and used.

    Attributes:
        name: in words.
        model: its number in the law.
        passes: K, as the law counts them.
        recurrent: share of N that every pass uses again.
        train: per training token, all passes.
        prefill: per prompt token, all prefill passes (exact prefill of a recurrence is serial).
        decode: per output token.
        prefill_passes: the passes that `prefill` pays for, for the record.
        moved: bytes moved per output token; None where unknown.
    """

    name: str
    model: int
    passes: float
    recurrent: float
    train: Price
    prefill: Price
    decode: Price
    prefill_passes: float = 1.0
    moved: Price | None = None


def proportional(factor: float) -> Price:
    """factor N per token: 6 K for training with K passes, 2 for decoding."""
    return lambda size: factor * size


def measured(sizes: ArrayLike, costs: ArrayLike) -> Price:
    """Straight lines in ln cost against ln size through measured points; the end segments go on.

    One point alone is taken to grow in proportion to size.
    """
    x, order = np.unique(np.log(np.asarray(sizes, dtype=float)), return_inverse=True)
    y = np.array([np.log(np.asarray(costs, dtype=float))[order == i].mean() for i in range(len(x))])
    if len(x) == 1:
        return proportional(float(np.exp(y[0] - x[0])))
    slopes = np.diff(y) / np.diff(x)

    def price(size: np.ndarray) -> np.ndarray:
        at = np.log(size)
        segment = np.clip(np.searchsorted(x, at) - 1, 0, len(slopes) - 1)
        return np.exp(y[segment] + slopes[segment] * (at - x[segment]))

    return price


def timed(sizes: ArrayLike, costs: ArrayLike) -> Price:
    """One power law of size through costs that a clock measured, by least squares in logarithms.

    The power is not below 0: between sizes that hardly differ in time, noise must not make a larger
    model the cheaper one. One size alone has one price.
    """
    x = np.log(np.asarray(sizes, dtype=float))
    y = np.log(np.asarray(costs, dtype=float))
    spread = ((x - x.mean()) ** 2).sum()
    power = max(0.0, float(((x - x.mean()) * y).sum() / spread)) if spread > 0 else 0.0

    def price(size: np.ndarray) -> np.ndarray:
        return np.exp(y.mean() + power * (np.log(size) - x.mean()))

    return price


@dataclass(frozen=True)
class Reach:
    """What one model needs for a target loss, for many draws of its law (B,) at once.

    ln D(N) = least_data - ln(1 - (N / smallest)^-alpha) / beta: no size below `smallest`, and no
    amount of data below `least_data`, reaches the target. NaN where no size does.
    """

    deployment: Deployment
    alpha: np.ndarray
    beta: np.ndarray
    smallest: np.ndarray
    least_data: np.ndarray

    def data(self, x: np.ndarray) -> np.ndarray:
        """ln D at x = alpha (ln N - smallest), of shape (..., B)."""
        return self.least_data - np.log(-np.expm1(-x)) / self.beta

    def size(self, x: np.ndarray) -> np.ndarray:
        """ln N at x."""
        return self.smallest + x / self.alpha

    def least(self, use: np.ndarray, ratio: float) -> tuple[np.ndarray, np.ndarray]:
        """ln of the least total cost and the x where it is, at `use` output tokens (..., B)."""

        def cost(v: np.ndarray) -> np.ndarray:
            x = np.exp(v)
            size = np.exp(self.size(x))
            with np.errstate(over="ignore"):
                training = np.exp(self.data(x)) * self.deployment.train(size)
                return np.log(training + use * per_token(self.deployment, size, ratio))

        shape = np.broadcast_shapes(np.shape(use), self.alpha.shape)
        values = np.stack([cost(np.full(shape, v)) for v in GRID])
        best = np.where(np.isnan(values), np.inf, values).argmin(axis=0)
        low = GRID[np.maximum(best - 1, 0)]
        high = GRID[np.minimum(best + 1, len(GRID) - 1)]
        inner, outer = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        at_inner, at_outer = cost(inner), cost(outer)
        for _ in range(SECTIONS):
            left = at_inner < at_outer
            low, high = np.where(left, low, inner), np.where(left, outer, high)
            new = np.where(left, high - GOLDEN * (high - low), low + GOLDEN * (high - low))
            value = cost(new)
            inner, outer = np.where(left, new, outer), np.where(left, inner, new)
            at_inner, at_outer = (
                np.where(left, value, at_outer),
                np.where(left, at_inner, value),
            )
        return np.minimum(at_inner, at_outer), np.exp((low + high) / 2)

    def endless(self, ratio: float) -> np.ndarray:
        """ln cost per output token when training no longer counts: at the smallest size."""
        return np.log(per_token(self.deployment, np.exp(self.smallest), ratio))


def per_token(deployment: Deployment, size: np.ndarray, ratio: float) -> np.ndarray:
    """Cost of one output token together with its share of the prompt."""
    if ratio == 0:
        return deployment.decode(size)
    return deployment.decode(size) + ratio * deployment.prefill(size)


def reach(fit: Fit, theta: np.ndarray, deployment: Deployment, target: float) -> Reach:
    """What the deployment needs for a target loss under parameters theta (B, P).

    Fresh data only: no token is seen twice. NaN where the target is at or below the law's floor.
    """
    law, centre = fit.law, fit.centre
    one = runs(
        np.exp(centre.size),
        np.exp(centre.data),
        1.0,
        passes=deployment.passes,
        recurrent=deployment.recurrent,
        model=deployment.model,
    )
    shift_size = law.sizes(theta, one, centre)[..., 0]
    shift_data = law.data(theta, one, centre)[..., 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        left = np.log(target - law.floor(theta, one))
    a, b, alpha, beta = (theta[..., i] for i in (0, 1, 3, 4))
    return Reach(
        deployment,
        alpha,
        beta,
        centre.size - shift_size + (a - left) / alpha,
        centre.data - shift_data + (b - left) / beta,
    )


def cheapest(reaches: Sequence[Reach], use: np.ndarray, ratio: float) -> np.ndarray:
    """ln of the least cost over several deployments (numbers of passes) of one model."""
    return np.fmin.reduce([r.least(use, ratio)[0] for r in reaches])
