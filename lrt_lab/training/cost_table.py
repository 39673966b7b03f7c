"""The work that each mechanism really executes, as `docs/costs.md` prints it.

    python -m lrt_lab.training.cost_table > docs/costs.md

Every number comes from the meter; a test compares the file with what this prints.
"""

from __future__ import annotations

from pathlib import Path

from lrt_lab.training.config import merge_configs
from lrt_lab.training.describe import build, price
from lrt_lab.training.meter import Cost

CONFIGS = Path(__file__).parents[2] / "configs"
SMALL = {"data.length": 32}
#: What a row is called, and the fragment that it prices over configs/base.yaml.
ROWS = (
    ("plain", None),
    ("Coconut", "coconut"),
    ("T2MLR", "t2mlr"),
    ("Full-bandwidth", "full_bandwidth"),
    ("LRT", "lrt"),
    ("LRT, two scored rounds and one warm-up", "rounds"),
    ("gather and FFN", "gather_ffn"),
    ("gather and Householder (s3e42)", "householder"),
)
HEAD = """<!-- Made by `python -m lrt_lab.training.cost_table`; do not edit. -->
# Work actually executed

Each row is a fragment of `configs/route/` over `configs/base.yaml`, with rows of {length}
positions and {blocks} blocks. Passes are token-forwards per token, calls are evaluations of the
stack (or of a range of its units) one after the other per row, heads are logits per token. FLOPs
are those of matrix products, forward and backward, as a multiple of the plain model's; pointwise
work is in [pointwise.md](pointwise.md).

| mechanism | calls | passes | with gradients | heads | train FLOPs | kept bytes | \
decode FLOPs per token |
|---|---|---|---|---|---|---|---|
"""


def table() -> str:
    """The document."""
    costs: dict[str, Cost] = {}
    for name, fragment in ROWS:
        files = [CONFIGS / "base.yaml"]
        if fragment is not None:
            files.append(CONFIGS / f"route/{fragment}.yaml")
        costs[name] = price(merge_configs(files, SMALL))
    plain = costs["plain"]
    blocks = merge_configs([CONFIGS / "base.yaml"])["model"]["blocks"]
    lines = [HEAD.format(length=plain.length, blocks=blocks).rstrip("\n")]
    for name, cost in costs.items():
        ratios = [
            getattr(cost, field) / getattr(plain, field)
            for field in (
                "train_flops_per_token",
                "saved_bytes_per_token",
                "decode_flops_per_token",
            )
        ]
        counts = [cost.calls, cost.passes, cost.graded_passes, cost.heads]
        lines.append(
            f"| {name} | "
            + " | ".join([f"{number:.4g}" for number in counts] + [f"{r:.2f}x" for r in ratios])
            + " |"
        )
    return "\n".join([*lines, "", *generation(costs)]) + "\n"


def generation(costs: dict[str, Cost]) -> list[str]:
    """What generation executes beside one evaluation of the stack per emitted token."""
    plain, fed = costs["plain"], costs["Full-bandwidth"]
    silent = round(costs["Coconut"].calls) - 1
    config = merge_configs([CONFIGS / "base.yaml", CONFIGS / "route/full_bandwidth.yaml"], SMALL)
    _, schedule, _ = build(config)
    most = len(schedule.shares)
    # The first pass has no memory yet.
    share = 1 + (most - 1) * fed.prefill_flops_per_token / plain.prefill_flops_per_token
    added = costs["LRT"].decode_flops_per_token / plain.decode_flops_per_token - 1
    return [
        "Generation evaluates the stack once per emitted token with every mechanism. Beside that:",
        "",
        f"- Coconut evaluates it {silent + 1} times before the first answer token in its last",
        f"  stage: once up to the first silent position, and once for each of the {silent} silent",
        "  ones.",
        "- A recurrent route reads a prompt exactly in one evaluation per position, one after the",
        "  other. Full-bandwidth may read it in parallel instead, fed back as often as in",
        f"  training: {most} passes, {most - 1} of them extra, {share:.2f}x a plain prompt's",
        "  FLOPs.",
        f"- LRT's injection adds {added:.1%} to the FLOPs of a token, and",
        f"  {costs['LRT'].state_bytes - plain.state_bytes} bytes to a sequence's state.",
    ]


if __name__ == "__main__":
    print(table(), end="")
