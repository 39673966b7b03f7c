"""The committed table of executed work is what the meter says."""

from __future__ import annotations

from pathlib import Path

from lrt_lab.training.cost_table import table

FILE = Path(__file__).parents[2] / "docs/costs.md"


def test_the_committed_table_is_the_meters() -> None:
    found = table()
    assert FILE.read_text() == found, "run `python -m lrt_lab.training.cost_table > docs/costs.md`"
    # Published counts: Coconut's n + 1 calls, T2MLR's 2 + 15 x 2 / 4 passes, Full-bandwidth's 1.28.
    cells = [line.split("|")[1:] for line in found.splitlines() if "|" in line]
    rows = {name.strip(): numbers for name, *numbers in cells}
    assert rows["Coconut"][0].strip() == "7"
    assert rows["T2MLR"][1].strip() == "9.5"
    assert rows["Full-bandwidth"][1].strip() == "1.28"
    assert rows["gather and Householder (s3e42)"][1].strip() == "3.25"
