"""Frames: document starts, joining, and what a query may see."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.frame import Frame
from tests.support.models import documents, tokens


def test_documents_start_where_the_number_changes() -> None:
    ids = tokens(6)
    assert Frame(ids).start().tolist() == [[True] + [False] * 5] * 2
    packed = Frame(ids, documents(2, 1, 3))
    assert packed.start().tolist() == [[True, False, True, True, False, False]] * 2
    together = Frame(ids, documents(2, 4), memory_document=torch.zeros_like(ids))
    assert together.start().tolist() == [[True] + [False] * 5] * 2


def test_packed_drops_the_mask_only_for_whole_rows() -> None:
    ids = tokens(4)
    assert Frame.packed(ids, torch.tensor([[3] * 4, [0] * 4])).document is None
    assert Frame.packed(ids, torch.tensor([[0] * 4, [0, 0, 1, 1]])).document is not None


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        ({}, {}, None),
        ({"document": [0, 1]}, {}, [0, 1, 1, 1]),
        ({"document": [0, 1]}, {"document": [1, 2]}, [0, 1, 1, 2]),
        ({}, {"document": [0, 1]}, [0, 0, 0, 1]),
    ],
    ids=["none", "continued", "numbered on", "named late"],
)
def test_joined_documents(first: dict, second: dict, joined: list[int] | None) -> None:
    def frame(fields: dict) -> Frame:
        return Frame(tokens(2, 1), **{k: torch.tensor([v]) for k, v in fields.items()})

    whole = frame(first).append(frame(second))
    assert whole.length == 4
    assert whole.memory_document is None
    assert (None if whole.document is None else whole.document[0].tolist()) == joined


@pytest.mark.parametrize(
    ("first", "second", "starts"),
    [
        ({"document": [0, 1]}, {"document": [1, 2], "memory_document": [1, 1]}, [0, 1]),
        ({"document": [0, 1], "memory_document": [0, 0]}, {}, [0]),
        ({"document": [0, 1], "memory_document": [0, 0]}, {"document": [1, 2]}, [0, 2, 3]),
        ({}, {"memory_document": [0, 1]}, [0, 3]),
    ],
    ids=["named late", "continued", "following", "alone"],
)
def test_joined_resets_follow_documents_until_they_are_named(
    first: dict, second: dict, starts: list[int]
) -> None:
    def frame(fields: dict) -> Frame:
        return Frame(tokens(2, 1), **{k: torch.tensor([v]) for k, v in fields.items()})

    whole = frame(first).append(frame(second))
    assert whole.start()[0].nonzero().flatten().tolist() == starts


@pytest.mark.parametrize("name", ["silent", "question"])
def test_positions_are_unmarked_where_a_frame_marks_none(name: str) -> None:
    one, two = Frame(tokens(2, 1), **{name: torch.tensor([[True, False]])}), Frame(tokens(1, 1))
    assert getattr(one.append(two), name).tolist() == [[True, False, False]]
    assert getattr(two.append(one), name).tolist() == [[False, True, False]]


def test_positions_cannot_be_guessed() -> None:
    placed = Frame(tokens(2), position=torch.arange(2).expand(2, 2))
    with pytest.raises(ValueError, match="rotary positions"):
        placed.append(Frame(tokens(2)))


def test_rows_and_columns_can_be_chosen() -> None:
    frame = Frame(tokens(5), documents(2, 3), position=torch.arange(5).expand(2, 5))
    chosen = frame.select(torch.tensor([1])).head(3)
    assert chosen.ids.tolist() == frame.ids[1:, :3].tolist()
    assert chosen.document.tolist() == [[0, 0, 1]]
    assert chosen.position.tolist() == [[0, 1, 2]]
    assert chosen.silent is None


@pytest.mark.parametrize("window", [None, 0, 1, 3, 20])
@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
@pytest.mark.parametrize("positions", [range(6), range(1, 6, 2), range(5, 6), range(3)], ids=str)
def test_a_query_sees_its_document_up_to_itself(
    positions: range, packed: bool, window: int | None
) -> None:
    document = documents(2, 4)
    frame = Frame(tokens(6), document if packed else None)
    reach = positions.stop
    mask = frame.at(positions, reach).mask(window)
    expected = [
        [
            s <= t
            and (window is None or t - s <= window)
            and (not packed or bool(document[0, s] == document[0, t]))
            for s in range(reach)
        ]
        for t in positions
    ]
    if mask is None:
        # Torch's causal kernel, or a single last query that sees everything.
        assert expected == [[s <= t for s in range(reach)] for t in positions]
    else:
        assert mask.expand(2, 1, *mask.shape[-2:])[0, 0].tolist() == expected


def test_layers_with_other_windows_see_other_masks() -> None:
    """Masks are kept for the sweep: one per window."""
    at = Frame(tokens(4)).at(range(4), 4)
    seen = [at.mask(1), at.mask(2), at.mask(0), at.mask()]
    assert [None if mask is None else int(mask.sum()) for mask in seen] == [7, 9, 4, None]
    assert at.mask(2) is seen[1]
