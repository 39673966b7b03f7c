"""The package as another lab would use it: plain arrays in, points and intervals out."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import lrt_lab.analysis as analysis
import lrt_lab.analysis.scaling as scaling
from lrt_lab.analysis import Square, Table, analyse, paired


def test_the_example_of_the_docstring() -> None:
    draws = np.random.default_rng(1)
    loss = 3 * np.exp([[0.0], [-0.01], [-0.03], [-0.06]] + 1e-4 * draws.standard_normal((4, 5)))
    gain = paired(np.log(loss[0]) - np.log(loss[1]))
    low, high = gain.interval(0.95)
    assert low < gain.point < high
    table = Table(("P", "P+R", "A", "A+R"), (1, 2, 3, 4, 5), loss)
    study = analyse(table, Square("P", "A", "none", "R", table.cells), margin=0.001)
    assert study.log["gain_base"].point == gain.point
    assert str(study.ratio.kind) == "bounded"
    assert str(study.verdict.reading) == "supported"


@pytest.mark.parametrize(
    "thing",
    [getattr(analysis, name) for name in analysis.__all__]
    + [getattr(scaling, name) for name in scaling.__all__ if not name.isupper()],
    ids=lambda thing: thing.__name__,
)
def test_everything_public_says_what_it_is(thing: object) -> None:
    assert thing.__doc__


def test_numpy_and_scipy_are_all_it_imports() -> None:
    code = (
        "import sys, lrt_lab.analysis.scaling\n"
        "heavy = {'torch', 'lightning', 'matplotlib', 'pandas', 'yaml', 'rich', 'jsonargparse'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
