"""Draws that depend on a seed and a purpose alone."""

from __future__ import annotations

import numpy as np
import pytest

from lrt_lab.analysis.draws import NOISES, generator, noise


def test_equal_seed_and_purpose_equal_draws() -> None:
    assert generator(1, "a", 2).normal() == generator(1, "a", 2).normal()


@pytest.mark.parametrize("other", [(2, "a"), (1, "b"), (1, "a", "b")], ids=str)
def test_another_seed_or_purpose_other_draws(other: tuple) -> None:
    assert generator(1, "a").normal() != generator(*other).normal()


@pytest.mark.parametrize("kind", NOISES)
def test_noise_has_mean_0_and_variance_1(kind: str) -> None:
    values = noise(kind, (200_000,), generator(3, kind))
    assert values.mean() == pytest.approx(0, abs=0.02)
    assert np.var(values) == pytest.approx(1, abs=0.08)


def test_unknown_noise_names_the_known() -> None:
    with pytest.raises(ValueError, match="normal, t4, skewed"):
        noise("pink", (1,), generator(1))
