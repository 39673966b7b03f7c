"""`lrt-lab selfcheck`: the simulated settings as a table, and whether all is well."""

from __future__ import annotations

import math

from lrt_lab.report import selfcheck
from lrt_lab.report.layout import grid

HEAD = (
    "noise",
    "n",
    "true I",
    "coverage I",
    "coverage gains",
    "p < .05",
    "coverage ratio",
    "supported",
    "negligible",
    "reversed",
    "equivalent",
    "inconclusive",
)


def run(simulations: int, seed: int) -> tuple[str, bool]:
    """The text, and whether every share lies where it must."""
    found = list(selfcheck.rows(simulations, seed))
    problems = [
        f"{r.noise}, n = {r.n}, I = {r.effect:g}: {what}" for r in found for what in r.problems
    ]
    parts = [
        f"{simulations} simulated suites per setting, seed {seed}, through the report's own "
        "loader, "
        "contrasts, intervals and verdict. Shares; 95% intervals.",
        grid(HEAD, [_row(r) for r in found]),
        "Ratio with a weak denominator (Fieller) and false claims among 8 equal variants",
        grid(
            ["n", "coverage ratio", "undefined", "any false claim, Holm", "uncorrected"],
            [_second(n, simulations, seed, problems) for n in selfcheck.SEEDS],
        ),
    ]
    parts.append(
        "All as expected." if not problems else "Off:\n" + "\n".join(f"- {p}" for p in problems)
    )
    return "\n\n".join(parts), not problems


def _row(row: selfcheck.Row) -> list[str]:
    shares = [row.coverage, row.coverage_gains, row.rejected, row.ratio_coverage]
    shares += [row.verdicts[name] for name in HEAD[7:]]
    return [row.noise, str(row.n), f"{row.effect:g}", *(f"{share:.4f}" for share in shares)]


def _second(n: int, simulations: int, seed: int, problems: list[str]) -> list[str]:
    coverage, undefined, exactly = selfcheck.weak_ratio("normal", n, simulations, seed)
    with_holm, raw = selfcheck.family_wise(n, simulations, seed)
    if not exactly:
        problems.append(
            f"n = {n}: a weak ratio is not undefined exactly where its denominator covers 0"
        )
    bound = selfcheck.FAMILY_WISE
    error = 3 * math.sqrt(bound * (1 - bound) / simulations)
    if n >= 5 and abs(with_holm - bound) > error:
        problems.append(f"n = {n}: family-wise error {with_holm:.4f}, expected {bound:g}")
    return [str(n), f"{coverage:.4f}", f"{undefined:.3f}", f"{with_holm:.4f}", f"{raw:.4f}"]
