"""Two models at one price of an output token and one training budget: which has the lower loss?

A crossing lets each model choose its size. Here test-time compute is fixed instead: the baseline
answers a cheaper or dearer model by being larger or smaller. Size follows from the price of a
token, data from what the training budget then buys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from lrt_lab.analysis.scaling.bootstrap import Draws
from lrt_lab.analysis.scaling.costs import Deployment, Price, per_token
from lrt_lab.analysis.scaling.run_table import runs
from lrt_lab.errors import UserError


@dataclass(frozen=True)
class EqualUse:
    """ln loss of the model - ln loss of the baseline, (G,) each: below 0 the model is better.

    Attributes:
        price: of an output token with its share of the prompt.
        point, low, high: the difference.
        passes: the model's passes that did best.
        size, data: the largest N and D of either over the largest run's.
    """

    price: np.ndarray
    point: np.ndarray
    low: np.ndarray
    high: np.ndarray
    passes: np.ndarray
    size: np.ndarray
    data: np.ndarray


def equal_use(
    draws: Draws,
    baseline: Deployment,
    model: Sequence[Deployment],
    price: ArrayLike,
    training: float,
    *,
    ratio: float = 0.0,
    level: float = 0.95,
) -> EqualUse:
    """Compare at equal test-time compute.

    Args:
        draws: of the law that holds both models.
        baseline, model: as for a crossing.
        price: what an output token may cost, (G,).
        training: what training may cost in all.
        ratio: prompt tokens read for every output token.
        level: of the intervals.
    """
    budget = np.atleast_1d(np.asarray(price, dtype=float))
    fit = draws.fit
    theta = np.concatenate([fit.theta[None], draws.theta])
    losses, sizes, data = [], [], []
    for deployment in (baseline, *model):
        size = np.array([_size(deployment, ratio, value) for value in budget])
        tokens = training / deployment.train(size)
        at = runs(
            size,
            tokens,
            np.ones_like(size),
            passes=deployment.passes,
            recurrent=deployment.recurrent,
            model=deployment.model,
        )
        losses.append(fit.law.log_loss(theta, at, fit.centre)[0])
        sizes.append(size / fit.runs.size.max())
        data.append(tokens / fit.runs.tokens.max())
    # the passes are chosen once, by the point estimate: a choice per draw would favour the model
    best = 1 + np.argmin([loss[0] for loss in losses[1:]], axis=0)
    here = np.arange(len(budget))
    difference = np.stack(losses)[best, :, here].T - losses[0]
    low, high = draws.interval(difference[1:], level)
    return EqualUse(
        budget,
        difference[0],
        low,
        high,
        np.array([model[i - 1].passes for i in best]),
        np.maximum(sizes[0], np.stack(sizes)[best, here]),
        np.maximum(data[0], np.stack(data)[best, here]),
    )


def _size(deployment: Deployment, ratio: float, price: float) -> float:
    """The size whose output token costs `price`."""

    def over(ln_size: float) -> float:
        cost = per_token(deployment, np.exp(np.array([ln_size])), ratio)
        return float(np.log(cost[0] / price))

    ends = (0.0, 46.0)
    if over(ends[0]) > 0 or over(ends[1]) < 0:
        raise UserError(f"no size of {deployment.name} costs {price:g} per output token")
    return float(np.exp(brentq(over, *ends)))


def sampled(deployment: Deployment, samples: float) -> Deployment:
    """The same model with `samples` answers generated for every one that is used."""
    decode: Price = deployment.decode
    return replace(deployment, decode=lambda size: samples * decode(size))
