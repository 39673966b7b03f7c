"""Where two models cost the same at one loss, as a function of how much they are used.

h(u) = ln cost of the model - ln cost of the baseline at u output tokens, each at its own best size
and data. A root is found on h itself, for every bootstrap draw by itself, inside a stated window.
The answer is one of `WORDS`; a number never stands without the window and how far beyond the
largest run the law had to be carried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lrt_lab.analysis.scaling.bootstrap import Draws
from lrt_lab.analysis.scaling.costs import Deployment, Reach, cheapest, reach
from lrt_lab.errors import UserError

CROSSES, BEYOND = "crosses", "crosses beyond the data"
ALWAYS, NEVER_IN_WINDOW, NEVER = "always better in window", "never in window", "never"
SEVERAL, UNDEFINED = "several crossings", "undefined"
WORDS = (CROSSES, BEYOND, ALWAYS, NEVER_IN_WINDOW, NEVER, SEVERAL, UNDEFINED)

WINDOW = (1e7, 1e14)
# a law carried further than this beyond the largest run is no finding
FURTHEST = 10.0
# a saving without limit of use that is not shown to exceed this is none
WORTH = 0.01
POINTS = 29
STEPS = 40


@dataclass(frozen=True)
class Crossing:
    """The answer, and all that it rests on. Token counts are output tokens.

    Attributes:
        word: one of `WORDS`.
        better: "above" where the model is better beyond the crossing, "below" where before it.
        point, low, high: the crossing; 0 and infinity where a model is always ahead.
        window: the tokens looked at.
        target: the loss that both reach.
        ratio: prompt tokens for every output token.
        extrapolation: the largest of compute, size and data of either model at the crossing (at the
            window's end without one) over the largest run's; below 1 inside the data.
        beyond: which of "compute", "size" and "data" that is.
        moved: bytes moved per output token, the model's over the baseline's, there; NaN if unknown.
        saving: share of the cost that the model saves without limit of use: point, low, high.
        undefined: share of draws in which the target lies below a model's floor.
        several: share of draws with several crossings, or one the other way round.
        tokens, log_ratio: h and its interval on a grid: (G,), (3, G) point, low, high.
        reached: extrapolation at every point of the grid, (G,).
    """

    word: str
    better: str
    point: float
    low: float
    high: float
    window: tuple[float, float]
    target: float
    ratio: float
    extrapolation: float
    beyond: str
    moved: float
    saving: tuple[float, float, float]
    undefined: float
    several: float
    tokens: np.ndarray
    log_ratio: np.ndarray
    reached: np.ndarray


def crossing(
    draws: Draws,
    baseline: Deployment,
    model: Sequence[Deployment],
    target: float,
    *,
    ratio: float = 0.0,
    window: tuple[float, float] = WINDOW,
    level: float = 0.95,
) -> Crossing:
    """Where the model becomes the better use of compute, with an interval over the draws.

    Args:
        draws: of the law that holds both models.
        baseline: what the model is compared with.
        model: the model at each number of passes that it may be used with; the cheapest counts.
        target: the loss that both must reach, in the unit of the runs.
        ratio: prompt tokens read for every output token.
        window: output tokens to look at.
        level: of the intervals.
    """
    if not 0 < window[0] < window[1]:
        raise UserError(f"the window must rise from above 0, not {window[0]:g} to {window[1]:g}")
    fit = draws.fit
    # the point estimate is one more draw, the first
    theta = np.concatenate([fit.theta[None], draws.theta])
    base = reach(fit, theta, baseline, target)
    others = [reach(fit, theta, deployment, target) for deployment in model]
    tokens = np.geomspace(*window, POINTS)
    h = _difference(base, others, tokens[:, None], ratio)
    endless = np.fmin.reduce([r.endless(ratio) for r in others]) - base.endless(ratio)

    base_fails = np.isnan(base.smallest)
    model_fails = np.all([np.isnan(r.smallest) for r in others], axis=0)
    undefined = base_fails | model_fails
    signs = h > 0
    changes = (signs[1:] != signs[:-1]).sum(axis=0)
    better = "below" if not undefined[0] and changes[0] == 1 and signs[-1, 0] else "above"
    ahead, behind = (0.0, np.inf) if better == "above" else (np.inf, 0.0)
    found = np.where(signs[0], behind, ahead)
    right_way = (changes == 1) & (signs[0] == (better == "above"))
    rows = np.flatnonzero(right_way & ~undefined)
    if len(rows):
        found[rows] = _roots(base, others, tokens, signs, rows, ratio)
    # a model that cannot reach the target costs without limit
    found = np.where(model_fails, behind, np.where(base_fails, ahead, found))
    odd = ~undefined & (changes > 0) & ~right_way
    counted = found[1:][~odd[1:] & ~(base_fails & model_fails)[1:]]
    low, high = draws.interval(counted, level) if len(counted) else (np.nan, np.nan)

    saving = -np.expm1(endless)
    sound = saving[1:][np.isfinite(saving[1:])]
    save_low, save_high = draws.interval(sound, level) if len(sound) else (np.nan, np.nan)
    places = _places(draws, base, others, tokens, ratio)
    at, index = places, -1
    if right_way[0] and not undefined[0]:
        at, index = _places(draws, base, others, found[:1], ratio), 0
    share = float(undefined[1:].mean()) if len(draws.theta) else 0.0
    if undefined[0] or share > 1 - level:
        word = UNDEFINED
    elif changes[0] > 1:
        word = SEVERAL
    elif changes[0] == 1:
        word = BEYOND if at.factor[index] > FURTHEST else CROSSES
    elif not signs[0, 0]:
        word = ALWAYS
    else:
        word = NEVER_IN_WINDOW if save_low > WORTH else NEVER
    band = draws.interval(np.where(np.isnan(h[:, 1:]), np.inf, h[:, 1:]).T, level)
    return Crossing(
        word=word,
        better=better,
        point=float("nan") if word in (UNDEFINED, SEVERAL) else float(found[0]),
        low=float(low),
        high=float(high),
        window=window,
        target=target,
        ratio=ratio,
        extrapolation=float(at.factor[index]),
        beyond=at.kind[index],
        moved=float(at.moved[index]),
        saving=(float(saving[0]), float(save_low), float(save_high)),
        undefined=share,
        several=float(odd[1:].mean()) if len(draws.theta) else 0.0,
        tokens=tokens,
        log_ratio=np.stack([h[:, 0], *band]),
        reached=places.factor,
    )


def _difference(base: Reach, others: Sequence[Reach], use: np.ndarray, ratio: float) -> np.ndarray:
    return cheapest(others, use, ratio) - base.least(use, ratio)[0]


def _part(found: Reach, which: np.ndarray) -> Reach:
    values = (found.alpha, found.beta, found.smallest, found.least_data)
    return Reach(found.deployment, *(v[which] for v in values))


def _roots(
    base: Reach,
    others: Sequence[Reach],
    tokens: np.ndarray,
    signs: np.ndarray,
    rows: np.ndarray,
    ratio: float,
) -> np.ndarray:
    """Roots of h in ln u, by false position with halving (Illinois), all draws at once."""
    base, others = _part(base, rows), [_part(r, rows) for r in others]
    change = (signs[1:, rows] != signs[:-1, rows]).argmax(axis=0)
    low, high = np.log(tokens)[change], np.log(tokens)[change + 1]
    at_low = _difference(base, others, np.exp(low), ratio)
    at_high = _difference(base, others, np.exp(high), ratio)
    middle, last = low, np.zeros(len(rows))
    for _ in range(STEPS):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        value = _difference(base, others, np.exp(middle), ratio)
        if np.abs(value).max() < 1e-9:
            break
        left = np.sign(value) == np.sign(at_low)
        at_high = np.where(left, np.where(last == 1, at_high / 2, at_high), value)
        at_low = np.where(left, value, np.where(last == -1, at_low / 2, at_low))
        low, high = np.where(left, middle, low), np.where(left, high, middle)
        last = np.where(left, 1, -1)
    return np.exp(middle)


@dataclass(frozen=True)
class _Places:
    """Where the two models of the point estimate lie at several token counts, (G,) each."""

    factor: np.ndarray
    kind: list[str]
    moved: np.ndarray


def _places(
    draws: Draws, base: Reach, others: Sequence[Reach], tokens: np.ndarray, ratio: float
) -> _Places:
    """How far beyond the largest run the two models lie, in what, and the bytes that they move."""
    given = draws.fit.runs
    # compute as 6 N D K on both sides, whatever unit the prices are in
    compute = 6 * given.size * given.tokens * given.passes
    most = (compute.max(), given.size.max(), given.tokens.max())
    first = np.zeros(1, dtype=int)
    use = np.asarray(tokens, dtype=float)[:, None]
    costs, factors, moved = [], [], []
    for found in (_part(base, first), *(_part(r, first) for r in others)):
        value, x = found.least(use, ratio)
        size, data = np.exp(found.size(x))[:, 0], np.exp(found.data(x))[:, 0]
        spent = 6 * size * data * found.deployment.passes
        costs.append(np.where(np.isnan(value[:, 0]), np.inf, value[:, 0]))
        factors.append(np.stack([v / m for v, m in zip((spent, size, data), most, strict=True)]))
        bytes_of = found.deployment.moved
        moved.append(np.full(len(size), np.nan) if bytes_of is None else bytes_of(size))
    chosen = 1 + np.argmin(costs[1:], axis=0)
    here = np.arange(len(use))
    both = np.fmax(factors[0], np.stack(factors)[chosen, :, here].T)
    names = ("compute", "size", "data")
    return _Places(
        both.max(axis=0),
        [names[i] for i in both.argmax(axis=0)],
        np.stack(moved)[chosen, here] / moved[0],
    )
