"""The rows of the tasks that ask: recall, assignment, reachability; each solved by plain search."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

from lrt_lab.data.batch import ANSWER, IGNORED, QUESTION
from lrt_lab.data.slices import EvaluationSlice
from lrt_lab.data.tasks import MQAR, ModularAddition, Reachability, VariableAssignment
from lrt_lab.errors import UserError


def rows(batch: dict[str, torch.Tensor], second: str) -> Iterator[tuple[list[int], list[int]]]:
    yield from zip(batch["tokens"].tolist(), batch[second].tolist(), strict=True)


def both(data: MQAR | VariableAssignment | Reachability) -> list[dict[str, torch.Tensor]]:
    longer: EvaluationSlice = data.longer("test")
    return [data.batch(0), longer.batch]


@pytest.mark.parametrize("modulus", [2, 5])
def test_modular_sums(modulus: int) -> None:
    for numbers, targets in rows(ModularAddition(modulus, length=9).batch(0), "targets"):
        assert targets == [sum(numbers[: t + 1]) % modulus for t in range(9)]


@pytest.mark.parametrize("associations", [1, 4, 7])
def test_every_key_is_asked_once_and_its_value_is_the_answer(associations: int) -> None:
    data = MQAR(associations, keys=7, values=5, length=21, test_rows=32)
    for batch in both(data):
        for tokens, targets in rows(batch, "targets"):
            pairs = dict(
                zip(tokens[: 2 * associations : 2], tokens[1 : 2 * associations : 2], strict=True)
            )
            asked = [t for t, target in enumerate(targets) if target != IGNORED]
            assert len(pairs) == associations and min(asked) >= 2 * associations
            assert sorted(tokens[t] for t in asked) == sorted(pairs)
            assert all(1 <= key <= 7 < value <= 12 for key, value in pairs.items())
            assert all(targets[t] == pairs[tokens[t]] for t in asked)
            rest = set(range(2 * associations, len(tokens))) - set(asked)
            assert all(tokens[t] == 0 for t in rest)


def test_a_running_row_asks_for_a_key_so_far_after_every_pair() -> None:
    data = MQAR(5, keys=7, values=5, running=True, length=17, test_rows=256)
    for batch, stride in zip(both(data), (3, 6), strict=True):
        late = set()
        for tokens, targets in rows(batch, "targets"):
            held: dict[int, int] = {}
            for start in range(0, 5 * stride, stride):
                key, value = tokens[start : start + 2]
                assert key not in held and 1 <= key <= 7 < value <= 12
                held[key] = value
                asked = start + stride - 1
                assert targets[asked] == held[tokens[asked]]
                assert not any(tokens[start + 2 : asked])
                late.add(list(held).index(tokens[asked]))
            assert not any(tokens[5 * stride :])
            assert sum(target != IGNORED for target in targets) == 5
        assert late == set(range(5))


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_variable_has_the_value_that_its_chain_leads_to(depth: int) -> None:
    data = VariableAssignment(depth, values=4, length=30, test_rows=32)
    for batch in both(data):
        for tokens, targets in rows(batch, "targets"):
            chains = data.chains(len(tokens))
            start = len(tokens) - chains * (2 * depth + 3)
            assert set(tokens[:start]) <= {0}
            value: dict[int, int] = {}
            hops: dict[int, int] = {}
            for t in range(start, len(tokens) - chains, 2):
                variable, source = tokens[t : t + 2]
                assert variable not in value and variable > 4
                # A variable is only read after it was assigned.
                value[variable] = value[source] if source > 4 else source
                hops[variable] = hops[source] + 1 if source > 4 else 0
            asked = tokens[-chains:]
            assert len(set(asked)) == chains and all(hops[v] == depth for v in asked)
            assert targets[-chains:] == [value[variable] for variable in asked]
            assert set(targets[:-chains]) == {IGNORED}


@pytest.mark.parametrize("steps", [True, False], ids=["steps", "no-steps"])
@pytest.mark.parametrize("length", [31, 32])
def test_the_path_is_one_and_only_the_answer_is_reached(length: int, steps: bool) -> None:
    data = Reachability(hops=3, steps=steps, length=length, test_rows=32)
    for batch in both(data):
        for tokens, labels in rows(batch, "labels"):
            asks = tokens.index(1)
            question = [t for t, label in enumerate(labels) if label == QUESTION]
            assert question == list(range(asks + 4))
            body = tokens[:asks]
            body = body[len(body) % 2 :]
            edges = list(zip(body[::2], body[1::2], strict=True))
            root, *ends = tokens[asks + 1 : asks + 4]
            path, answer = tokens[asks + 4 : -1], tokens[-1]
            assert labels[asks + 4 :] == [*range(1, 4 * steps), ANSWER]
            reached = {root}
            while more := {b for a, b in edges if a in reached} - reached:
                reached |= more
            assert len(edges) == len(set(edges)) == data.nodes(len(tokens) - 1) - 2
            assert [end for end in ends if end in reached] == [answer]
            if steps:
                assert all(edge in edges for edge in pairwise([root, *path]))
                assert path[-1] == answer


def test_the_answer_stands_first_as_often_as_second() -> None:
    tokens = Reachability(test_rows=512).slices("test", None).batch["tokens"]
    first = (tokens[:, -1 - 3 - 2] == tokens[:, -1]).double().mean()
    assert abs(float(first) - 0.5) < 0.1


@pytest.mark.parametrize(
    ("task", "options", "says"),
    [
        (MQAR, {"associations": 22}, "associations is 22"),
        (MQAR, {"associations": 9, "keys": 8}, "at most data.keys"),
        (VariableAssignment, {"depth": 4, "length": 10}, "takes 11 positions"),
        (Reachability, {"hops": 4, "length": 23}, "take at least 24 positions"),
        (ModularAddition, {"modulus": 1}, "modulus is 1"),
    ],
    ids=["pairs-that-do-not-fit", "too-few-keys", "chain-too-long", "paths-too-long", "modulus"],
)
def test_rows_that_cannot_be(task: type, options: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        task(**options)


def test_the_shortest_row_there_can_be() -> None:
    assert Reachability(hops=4, length=24).batch(0)["tokens"].shape == (64, 25)
    assert VariableAssignment(depth=4, length=11).batch(0)["tokens"].shape == (64, 11)
