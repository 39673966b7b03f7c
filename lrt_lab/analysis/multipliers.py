"""Token and compute multipliers: how much of a cost the baseline would need to reach a variant's
loss.

M = C_base(L_variant) / C_variant, where C_base is read off the baseline's *completed* runs at
several budgets, by straight lines between them in ln loss against ln cost. Points in the middle of
one schedule are not shorter runs and never enter. Within the segment that holds the variant, ln M =
ln c_0 - ln c_v + (ln c_1 - ln c_0) a / b with a = y_0 - y_v and b = y_0 - y_1: a ratio of two
means, so its interval is Fieller's, and it is undefined when the baseline's own improvement between
the two budgets is not distinguishable from zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from lrt_lab.analysis.estimate import Estimate, paired, quantile
from lrt_lab.analysis.ratio import BOUNDED, Ratio, fieller, ratio_of_means

Place = Literal["inside", "extrapolated", "above", "below", "undefined"]


@dataclass(frozen=True)
class Multiplier:
    """A cost multiplier with its interval.

    `place`: the variant's loss lies "inside" the baseline's completed budgets, slightly outside
    ("extrapolated"), "above" them (the baseline needs more than its largest budget: `point` is the
    lower bound), "below" them (less than the smallest: an upper bound), or the segment's slope is
    "undefined".
    """

    point: float
    low: float
    high: float
    place: Place
    budgets: int
    per_seed: np.ndarray | None = None


def multiplier(
    costs: Sequence[float],
    losses: Sequence[ArrayLike],
    cost: float,
    loss: ArrayLike,
    *,
    paired_seeds: bool = True,
    straight: Literal["log", "linear"] = "log",
    reach: float = 0.1,
    level: float = 0.95,
) -> Multiplier:
    """Cost multiplier of a variant against a baseline's completed budgets.

    Args:
        costs: the baseline's budgets (tokens, FLOPs, steps or seconds).
        losses: the baseline's losses at each budget, (seeds,) each.
        cost: what the variant spent.
        loss: the variant's losses, (seeds,).
        paired_seeds: whether equal positions are one seed; else the runs are independent (Welch).
        straight: lines in ln loss against ln cost, or in loss against cost.
        reach: how far beyond the budgets a line may be used, as a share of its segment.
        level: of the interval.
    """
    to = np.log if straight == "log" else np.asarray
    found_costs, found_losses = merged(costs, losses, paired_seeds)
    x = to(np.array(found_costs))
    rows = [to(row) for row in found_losses]
    target = to(np.asarray(loss, dtype=float))
    budgets = len(rows)
    nan = float("nan")
    if budgets < 2:
        return Multiplier(nan, nan, nan, "undefined", budgets)
    means, wanted = np.array([row.mean() for row in rows]), target.mean()
    # the first segment whose far end reaches the wanted loss, else the last one
    k = next((i for i in range(budgets - 1) if means[i + 1] <= wanted), budgets - 2)
    b = means[k] - means[k + 1]
    if not b > 0:
        return Multiplier(nan, nan, nan, "undefined", budgets)
    share = (means[k] - wanted) / b

    def ratio(position: ArrayLike) -> np.ndarray:
        at = x[k] + (x[k + 1] - x[k]) * np.asarray(position, dtype=float)
        return np.exp(at) / cost if straight == "log" else at / cost

    if share > 1 + reach:
        return Multiplier(float(ratio(1.0)), nan, nan, "above", budgets)
    if share < -reach:
        return Multiplier(float(ratio(0.0)), nan, nan, "below", budgets)
    if paired_seeds:
        found = ratio_of_means(rows[k] - target, rows[k] - rows[k + 1], level)
    else:
        found = _unpaired(rows[k], rows[k + 1], target, level)
    place: Place = "inside" if 0 <= share <= 1 else "extrapolated"
    if found.kind != BOUNDED:
        return Multiplier(float(ratio(share)), nan, nan, "undefined", budgets)
    linear = None
    if paired_seeds and straight == "log":
        # ln M linearised in each seed's losses: their mean is ln M, their spread the delta method's
        a_s, b_s = rows[k] - target, rows[k] - rows[k + 1]
        linear = np.log(float(ratio(share))) + (x[k + 1] - x[k]) * (a_s - share * b_s) / b
    low, high = ratio(found.low), ratio(found.high)
    return Multiplier(float(ratio(share)), float(low), float(high), place, budgets, linear)


def merged(
    costs: Sequence[float],
    losses: Sequence[ArrayLike],
    paired_seeds: bool = True,
    same: float = 0.01,
) -> tuple[list[float], list[np.ndarray]]:
    """Budgets in order, those within a share `same` of each other as one: no line runs between
    equal costs.

    Equal seeds of merged budgets are averaged; unpaired runs are put together.
    """
    groups: list[list[int]] = []
    for i in np.argsort(costs, kind="stable"):
        if groups and costs[i] <= costs[groups[-1][0]] * (1 + same):
            groups[-1].append(int(i))
        else:
            groups.append([int(i)])
    rows = [[np.asarray(losses[i], dtype=float) for i in group] for group in groups]
    join = (lambda row: np.mean(row, axis=0)) if paired_seeds else np.concatenate
    return [float(np.mean([costs[i] for i in group])) for group in groups], [
        join(row) for row in rows
    ]


def _unpaired(first: np.ndarray, second: np.ndarray, target: np.ndarray, level: float) -> Ratio:
    a, b = first.mean() - target.mean(), first.mean() - second.mean()
    v0, v1, vt = (row.var(ddof=1) / len(row) for row in (first, second, target))
    # Welch and Satterthwaite for the numerator, the part that carries the variant's own noise
    df = (v0 + vt) ** 2 / (v0**2 / (len(first) - 1) + vt**2 / (len(target) - 1))
    return fieller(a, b, v0 + vt, v0 + v1, v0, quantile(df, level))


def interaction(base: Multiplier, improved: Multiplier) -> Estimate | None:
    """ln M_A - ln M_P: the interaction on the compute scale, paired by seed; None where either is
    undefined.

    Multipliers that multiply are no interaction on this scale, which is the one with an operational
    meaning.
    """
    if base.per_seed is None or improved.per_seed is None:
        return None
    return paired(improved.per_seed - base.per_seed)


def interpolate(
    costs: Sequence[float], losses: Sequence[ArrayLike], cost: float
) -> np.ndarray | None:
    """The baseline's losses at another cost, per seed, on the same lines (ln loss against ln cost).

    None outside the completed budgets: nothing is extrapolated.
    """
    found_costs, found_losses = merged(costs, losses)
    x, y = np.log(np.array(found_costs)), np.log(np.array(found_losses))
    at = np.log(cost)
    if len(x) < 2 or not x[0] <= at <= x[-1]:
        return None
    k = min(int(np.searchsorted(x, at, side="right")) - 1, len(x) - 2)
    share = (at - x[k]) / (x[k + 1] - x[k])
    return np.exp(y[k] + share * (y[k + 1] - y[k]))
