"""What finished runs show: effects, intervals, tests, verdicts. Plain numpy arrays in, points and
intervals out.

Every function takes arrays whose *last* axis is the seed (or the run) and broadcasts over all axes
before it, so that one report and a simulation of five thousand reports go through the same code.
numpy and scipy only.

    from lrt_lab.analysis import Square, Table, analyse, paired

    gain = paired(np.log(loss_without) - np.log(loss_with))       # (seeds,) each, paired by seed
    gain.point, gain.interval(0.95), gain.p()

    table = Table(("P", "P+R", "A", "A+R"), seeds, loss)           # (4, seeds), nats per token
    study = analyse(table, Square("P", "A", "none", "R", table.cells), margin=0.001)
    study.log["interaction"].interval(), study.ratio.kind, study.verdict.reading
"""

from lrt_lab.analysis.contrasts import Contrast, evaluate, pairs
from lrt_lab.analysis.estimate import Estimate, independent, paired
from lrt_lab.analysis.linear_model import blocked, equal_variances
from lrt_lab.analysis.multiplicity import benjamini_hochberg, holm
from lrt_lab.analysis.multipliers import Multiplier, multiplier
from lrt_lab.analysis.planning import chances, detectable, power, seeds_needed
from lrt_lab.analysis.ratio import Ratio, fieller, ratio_of_means
from lrt_lab.analysis.seed_noise import SeedNoise, seed_noise
from lrt_lab.analysis.signflip import sign_flip
from lrt_lab.analysis.square import Square, effects, relative_gains, relative_ratio
from lrt_lab.analysis.study import Study, analyse
from lrt_lab.analysis.table import Table, arrange
from lrt_lab.analysis.verdict import Verdict, decide

__all__ = [
    "Contrast",
    "Estimate",
    "Multiplier",
    "Ratio",
    "SeedNoise",
    "Square",
    "Study",
    "Table",
    "Verdict",
    "analyse",
    "arrange",
    "benjamini_hochberg",
    "blocked",
    "chances",
    "decide",
    "detectable",
    "effects",
    "equal_variances",
    "evaluate",
    "fieller",
    "holm",
    "independent",
    "multiplier",
    "paired",
    "pairs",
    "power",
    "ratio_of_means",
    "relative_gains",
    "relative_ratio",
    "seed_noise",
    "seeds_needed",
    "sign_flip",
]
