"""Reachability in a graph with its path spelt out, after ProsQA (Hao et al., arXiv:2412.06769).

ProsQA asks in sentences which of two concepts something is, given a graph of "every X is a Y". Here
nodes and edges are tokens, so that a small model can learn it, and question, steps and answer are
labelled, as the Curriculum schedule needs it.
"""

from __future__ import annotations

from typing import Any

import torch

from lrt_lab.data.base import at_least
from lrt_lab.data.batch import ANSWER, QUESTION, Batch
from lrt_lab.data.tasks.base import Task, places
from lrt_lab.errors import UserError

__all__ = ["Reachability"]

FILLER, ASKS = 0, 1


class Reachability(Task):
    """Edges, a root and two nodes: which of them the root reaches, and on what path.

    The graph is two trees. The root of one, h hops above the node that is the answer, and a node as
    deep in the other tree are drawn; all further nodes hang below random ones. A row is

        (from to) x edges, ?, root, node, node | 1st node on the path | .. | h-th | answer

    with edges and the two nodes in random order. What stands before the first bar is the question,
    after it each node on the path is a step. Tokens: a filler, the question mark, then the nodes.
    At twice the length the graph has about twice as many nodes and the path is as long.

    Args:
        hops: edges between the root and the answer, h.
        steps: whether rows hold the path; without it the answer follows the question.
        length: positions per row, one less than its tokens; evaluation adds rows of twice as many.
        batch_size: rows per training batch.
        seed: decides the training batches, and nothing else.
        test_rows: rows of the test slice.
        validation_rows: rows of the slice that is scored during training.
    """

    def __init__(
        self,
        hops: int = 3,
        steps: bool = True,
        length: int = 31,
        batch_size: int = 64,
        seed: int = 1,
        test_rows: int = 512,
        validation_rows: int = 256,
    ) -> None:
        super().__init__(length, batch_size, seed, test_rows, validation_rows)
        at_least({"hops": (hops, 1)})
        self.hops, self.steps = hops, steps
        if self.nodes(length) < 2 * (hops + 1):
            least = self.around + 2 * (2 * hops) - 1
            raise UserError(
                f"data.length is {length}: two paths of {hops} hops take at least {least} positions"
            )

    @property
    def around(self) -> int:
        """Tokens of a row beside its edges: the question mark, three nodes, path and answer."""
        return 5 + (self.hops if self.steps else 0)

    def nodes(self, length: int) -> int:
        """How many nodes a row of so many positions has; two of them are roots."""
        return 2 + (length + 1 - self.around) // 2

    @property
    def vocabulary(self) -> int:
        """Filler, question mark, and nodes enough for rows of twice the length."""
        return 2 + self.nodes(2 * self.length)

    def options(self) -> dict[str, Any]:
        return {"hops": self.hops, "steps": self.steps}

    def draw(self, count: int, length: int, g: torch.Generator) -> Batch:
        n, h = self.nodes(length), self.hops
        # Nodes 0..h are one path, h + 1..2h + 1 the other; each later one has an earlier parent.
        parent = (torch.rand(count, n, generator=g) * torch.arange(n)).long()
        parent[:, : 2 * h + 2] = torch.arange(2 * h + 2) - 1
        child = torch.arange(n).expand(count, n)
        rooted = torch.tensor([node for node in range(n) if node not in (0, h + 1)])
        edges = torch.stack([parent, child], dim=2)[:, rooted]
        order = places(count, n - 2, n - 2, g)
        edges = edges.gather(1, order.unsqueeze(2).expand(-1, -1, 2)).flatten(1)
        ends = torch.tensor([h, 2 * h + 1]).expand(count, 2).gather(1, places(count, 2, 2, g))
        path = torch.arange(1, h + 1).expand(count, h)[:, : h if self.steps else 0]
        root, answer = torch.zeros(count, 1, dtype=torch.long), torch.full((count, 1), h)

        names = 2 + places(count, n, self.nodes(2 * self.length), g)
        named = names.gather(1, torch.cat([edges, root, ends, path, answer], dim=1))
        before, after = named.split([edges.shape[1], named.shape[1] - edges.shape[1]], dim=1)
        filler = torch.full((count, length + 1 - named.shape[1] - 1), FILLER)
        tokens = torch.cat([filler, before, torch.full((count, 1), ASKS), after], dim=1)
        labels = torch.full_like(tokens, QUESTION)
        labels[:, -1] = ANSWER
        if self.steps:
            labels[:, -1 - h : -1] = torch.arange(1, h + 1)
        return {"tokens": tokens, "labels": labels}
