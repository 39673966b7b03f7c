"""Grids of runs that follow a law exactly, or with noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.scaling import Law, Runs, runs
from lrt_lab.analysis.scaling.laws import Centre

TRUTH = {"A": 482.0, "B": 2085.4, "E": 1.8169, "alpha": 0.3478, "beta": 0.3658}
SIZES = tuple(np.geomspace(5e6, 8e7, 5))


def grid(
    law: Law,
    truth: Mapping[str, float],
    *,
    sizes: Sequence[float] = SIZES,
    ratios: Sequence[float] = (10, 20, 40),
    passes: Sequence[float] = (1,),
    models: int = 1,
    recurrent: float = 1.0,
    corpus: float = np.inf,
    sd: float = 0.0,
    seed: int = 1,
) -> Runs:
    """sizes x tokens per parameter x passes x models, ln loss with normal noise."""
    n, r, k, m = map(np.ravel, np.meshgrid(sizes, ratios, passes, range(models), indexing="ij"))
    bare = runs(n, n * r, 1.0 + 0 * n, passes=k, model=m, recurrent=recurrent, unique=corpus)
    centre = Centre.of(bare)
    y = law.log_loss(law.theta({**TRUTH, **truth}, centre), bare, centre)[0]
    noise = sd * generator(seed, "scaling runs").standard_normal(len(y))
    return runs(
        n,
        n * r,
        np.exp(y + noise),
        passes=k,
        model=m,
        recurrent=recurrent,
        unique=corpus,
    )
