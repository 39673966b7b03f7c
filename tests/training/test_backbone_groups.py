"""Which parameters of each backbone decay, which go to Muon and which to neither.

The table is written by the test itself: run it with ``-s`` to see the present one.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable

import pytest
import torch

from lrt_lab.backbones import (
    MHC,
    AttentionResiduals,
    Backbone,
    HyperConnections,
    MHCLite,
    MUDDFormer,
    PairwiseAttentionResiduals,
    PreNorm,
)
from lrt_lab.decoder import Decoder
from lrt_lab.training.optimizer import MuonAdamW

CASES: dict[str, Callable[[], Backbone]] = {
    "PreNorm": PreNorm,
    "PreNorm normformer": lambda: PreNorm(normformer=True),
    "PreNorm stream_scales": lambda: PreNorm(stream_scales=True),
    "DenseFormer": lambda: MUDDFormer(dynamic=False, multiway=False),
    "MUDDFormer": MUDDFormer,
    "MUDDFormer prepost": lambda: MUDDFormer(prepost=True),
    "HyperConnections static": lambda: HyperConnections(dynamic=False),
    "HyperConnections": HyperConnections,
    "MHC": MHC,
    "MHC head": lambda: MHC(readout="head"),
    "MHCLite": MHCLite,
    "AttentionResiduals": AttentionResiduals,
    "AttentionResiduals block": lambda: AttentionResiduals(block_size=2),
    "PairwiseAttentionResiduals": PairwiseAttentionResiduals,
}

# Columns: optimizer, whether it decays, the parameters; numbers of blocks and units as *.
TABLE = """
every decoder
    Muon  decays units.*.body.query units.*.body.key units.*.body.value units.*.body.out
                 units.*.body.up units.*.body.down
    AdamW decays head
    AdamW        embedding units.*.norm.gain norm.gain
PreNorm
    nothing
PreNorm normformer
    AdamW        mixer_norm.*.gain units.*.body.inner.gain
PreNorm stream_scales
    AdamW        stream skip
DenseFormer
    AdamW        aggregates.*.prior
MUDDFormer
    AdamW decays aggregates.*.generator aggregates.*.mixture
    AdamW        units.*.query_norm.gain units.*.key_norm.gain units.*.value_norm.gain
                 aggregates.*.prior
MUDDFormer prepost
    AdamW decays aggregates.*.generator aggregates.*.mixture
    AdamW        units.*.query_norm.gain units.*.key_norm.gain units.*.value_norm.gain
                 aggregates.*.generator_gain aggregates.*.post_gain aggregates.*.prior
                 source_gain.*
HyperConnections static
    AdamW        connections.*.read connections.*.carry connections.*.write
HyperConnections
    AdamW decays connections.*.read_weight connections.*.write_weight connections.*.carry_weight
    AdamW        connections.*.read connections.*.carry connections.*.write connections.*.gain
                 connections.*.bias connections.*.mix_scale connections.*.write_scale
MHC
    AdamW decays connections.*.phi
    AdamW        connections.*.gain connections.*.alpha connections.*.beta
MHC head
    AdamW decays head_phi connections.*.phi
    AdamW        head_alpha head_beta connections.*.gain connections.*.alpha connections.*.beta
MHCLite
    AdamW decays connections.*.phi
    AdamW        connections.*.gain connections.*.alpha connections.*.beta
AttentionResiduals
    AdamW        query key_gain
AttentionResiduals block
    AdamW        query key_gain
PairwiseAttentionResiduals
    AdamW        pair_query pair_bias
"""


def rows(build: Callable[[], Backbone]) -> dict[tuple[str, str], list[str]]:
    """Names by (optimizer, "decays" or "")."""
    optimizer = MuonAdamW(weight_decay=0.1).build(Decoder(8, 2, 11, build()))
    found: dict[tuple[str, str], list[str]] = {}
    for inner in optimizer.optimizers:
        for group in inner.param_groups:
            kind = "Muon" if isinstance(inner, torch.optim.Muon) else "AdamW"
            names = found.setdefault((kind, "decays" if group["weight_decay"] else ""), [])
            names += [re.sub(r"\.\d+", ".*", name) for name in group["parameter_names"]]
    return {key: list(dict.fromkeys(names)) for key, names in found.items()}


def table() -> str:
    """What all decoders share, then what each backbone adds to it."""
    shared = rows(PreNorm)
    lines = ["every decoder", *lines_of(shared)]
    for name, build in CASES.items():
        own = {
            key: [one for one in names if one not in shared.get(key, ())]
            for key, names in rows(build).items()
        }
        lines += [name, *lines_of(own)]
    return "\n".join(lines)


def lines_of(found: dict[tuple[str, str], list[str]]) -> list[str]:
    lines = []
    for (kind, decays), names in sorted(found.items(), reverse=True):
        if names:
            text = " ".join(name.removeprefix("backbone.") for name in names)
            first = f"    {kind:6}{decays:7}"
            lines += textwrap.wrap(text, 98, initial_indent=first, subsequent_indent=" " * 17)
    return lines or ["    nothing"]


def test_groups() -> None:
    print(f"\n{table()}")
    assert table() == TABLE.strip("\n")


@pytest.mark.parametrize("name", CASES)
def test_no_routing_parameter_decays_unless_it_is_a_routers_weight(name: str) -> None:
    decoder = Decoder(8, 2, 11, CASES[name]())
    for parameter, target in decoder.named_parameters():
        if target.role == "connection":
            decaying = rows(CASES[name]).get(("AdamW", "decays"), [])
            assert re.sub(r"\.\d+", ".*", parameter) not in decaying
