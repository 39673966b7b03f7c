"""What the figures show: runs and curves of the fitted law."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lrt_lab.analysis.scaling import Fit, Runs, largest, measured


def points(found: Fit, given: Runs) -> dict[str, Any]:
    return {
        "size": given.size,
        "tokens": given.tokens,
        "passes": given.passes,
        "compute": given.compute,
        "model": given.model,
        "loss": given.loss,
        "fitted": np.exp(found.log_loss(given)),
        "residual": found.residuals,
        "held_out": largest(given),
    }


def isoflop(found: Fit, given: Runs) -> list[dict[str, Any]]:
    """Fitted loss against size at fixed training compute, for the baseline's fewest passes."""
    base = given.take(given.model == 0)
    base = base.take(base.passes == base.passes.min())
    price = measured(base.size, base.compute / base.tokens)
    sizes = np.geomspace(base.size.min() / 2, base.size.max() * 2, 60)
    curves = []
    for compute in np.geomspace(base.compute.min(), base.compute.max(), 5):
        one = base.take(np.zeros(len(sizes), dtype=int))
        tokens = compute / price(sizes)
        loss = np.exp(
            found.log_loss(replace(one, size=sizes, tokens=tokens, unique=np.inf * sizes))
        )
        at = int(np.argmin(loss))
        curves.append(
            {
                "compute": compute,
                "size": sizes,
                "loss": loss,
                "best_size": sizes[at] if 0 < at < len(sizes) - 1 else None,
                "best_loss": loss[at],
            }
        )
    return curves


def passes(found: Fit, given: Runs) -> list[dict[str, Any]]:
    """Loss against passes, one line for every size, amount of data and model with several."""
    lines = []
    keys = np.stack([given.size, given.tokens, given.model], axis=1)
    for key in np.unique(keys, axis=0):
        mine = given.take((keys == key).all(axis=1))
        ks = np.unique(mine.passes)
        if len(ks) < 2:
            continue
        fine = np.linspace(ks[0], ks[-1], 25)
        one = mine.take(np.zeros(len(fine), dtype=int))
        lines.append(
            {
                "size": key[0],
                "tokens": key[1],
                "model": int(key[2]),
                "passes": ks,
                "loss": [mine.loss[mine.passes == k].mean() for k in ks],
                "fine": fine,
                "fitted": np.exp(found.log_loss(replace(one, passes=fine))),
            }
        )
    return lines
