"""Random draws keyed on seed and purpose."""

from __future__ import annotations

import torch

from lrt_lab.rng import generator, key


def draw(seed: int, *purpose: object) -> list[float]:
    return torch.rand(4, generator=generator(seed, *purpose)).tolist()


def test_the_same_key_draws_the_same_numbers() -> None:
    assert draw(1, "init", "head") == draw(1, "init", "head")


def test_another_seed_or_purpose_draws_others() -> None:
    draws = [draw(1, "init", "head"), draw(2, "init", "head"), draw(1, "init"), draw(1)]
    assert len({tuple(d) for d in draws}) == 4


def test_keys_fit_a_signed_word_and_do_not_move() -> None:
    # Runs of earlier versions can be repeated as long as this number stands.
    assert key(1, "init", "units.0.norm.gain") == 8221721837356416389
    assert all(0 <= key(seed, "a", 3) < 2**63 for seed in range(100))
