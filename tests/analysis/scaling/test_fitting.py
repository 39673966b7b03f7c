"""Fits of grids with known truth, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from lrt_lab.analysis.draws import generator
from lrt_lab.analysis.scaling import admit, fit, law, resample, runs
from lrt_lab.analysis.scaling.bootstrap import counts
from lrt_lab.analysis.scaling.laws import PASSES
from lrt_lab.errors import UserError
from tests.analysis.scaling.grids import TRUTH, grid
from tests.analysis.scaling.test_laws import EFFECTS, LAWS


# what only a corpus seen many times tells apart from the height of B
@pytest.mark.parametrize("name", [name for name in LAWS if name != "everything"])
def test_without_noise_the_truth_comes_back(name: str) -> None:
    found = LAWS[name]
    models = 1 + sum(n.startswith("m_N") for n in found.names)
    given = grid(
        found,
        EFFECTS,
        ratios=(5, 20, 80),
        passes=(1, 2, 3, 6),
        models=models,
        recurrent=0.8,
        corpus=5e7 if name == "repetition" else np.inf,
    )
    got = fit(found, given)
    truth = {**TRUTH, **EFFECTS}
    assert got.natural == pytest.approx({n: truth[n] for n in found.names}, rel=2e-3)
    assert not got.flags
    np.testing.assert_allclose(got.residuals, 0.0, atol=1e-6)


def test_diverged_runs_hardly_move_it() -> None:
    clean = grid(law(), {}, ratios=(5, 10, 20, 40), sd=0.001)
    loss = clean.loss.copy()
    loss[7] *= 1.05
    late = fit(law(), runs(clean.size, clean.tokens, loss))
    assert late.natural["alpha"] == pytest.approx(fit(law(), clean).natural["alpha"], abs=0.004)


def test_all_starts_agree() -> None:
    found = fit(law("iso-recurrence"), grid(law("iso-recurrence"), {"phi": 0.3}, passes=(1, 2, 4)))
    assert found.agreeing > 0.9
    assert found.starts >= 30


def test_a_vanishing_floor_is_flagged() -> None:
    found = fit(law(), grid(law(), {"E": 1e-6}, ratios=(2, 8, 32, 128)))
    assert any("E's term vanishes" in flag for flag in found.flags)


def test_one_ratio_of_data_to_size_is_flagged() -> None:
    sizes = tuple(np.geomspace(5e6, 8e7, 12))
    found = fit(law(), grid(law(), {}, sizes=sizes, ratios=(20,), sd=0.001))
    assert any("not told apart (condition number" in flag for flag in found.flags)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (grid(law(), {}, sizes=(1e6, 2e6), ratios=(10, 20, 40, 80)), "2 different values of size"),
        (grid(law(), {}).take(np.arange(6)), "needs 7 runs or more"),
    ],
    ids=["two sizes", "six runs"],
)
def test_what_cannot_be_fitted_is_refused(given, said: str) -> None:
    with pytest.raises(UserError, match=said):
        fit(law(), given)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"loss": [1.0, -1.0]}, "run 2: loss must be a positive number, not -1"),
        ({"size": [0.0, 1.0]}, "run 1: size must be a positive number, not 0"),
        ({"tokens": [np.inf, 1.0]}, "run 1: tokens must be a positive number, not inf"),
        ({"recurrent": [0.5, 1.5]}, r"run 2: the recurrent share lies in \[0, 1\], not 1.5"),
    ],
    ids=["loss", "size", "tokens", "share"],
)
def test_bad_numbers_are_refused(values, said: str) -> None:
    good = {"size": [1.0, 2.0], "tokens": [1.0, 2.0], "loss": [1.0, 2.0]}
    with pytest.raises(UserError, match=said):
        runs(**{**good, **values})


class TestRepeatedData:
    given = grid(law("none", repetition=True), {"R*": 15.4}, corpus=3e8, ratios=(5, 20, 80))

    def test_runs_of_many_epochs_are_refused_and_it_says_so(self) -> None:
        found = admit(self.given)
        assert 0 < len(found.refused) < len(self.given)
        assert len(found.runs) == len(self.given) - len(found.refused)
        assert found.runs.epochs.max() <= 4
        assert f"{len(found.refused)} of 15 runs saw their corpus more than 4 times" in found.said
        assert "refused" in found.said and not found.repetition

    def test_or_they_stay_with_a_repetition_term(self) -> None:
        found = admit(self.given, "term")
        assert found.repetition and len(found.runs) == len(self.given)
        assert "repetition term fitted" in found.said
        got = fit(law("none", repetition=True), found.runs)
        assert got.natural["R*"] == pytest.approx(15.4, rel=0.02)

    def test_an_unknown_corpus_is_not_taken_for_a_large_one(self) -> None:
        assert "size of the corpus is not given" in admit(grid(law(), {})).said
        assert "no run saw" in admit(grid(law(), {}, corpus=1e12)).said

    def test_nothing_left_is_an_error(self) -> None:
        with pytest.raises(UserError, match="nothing is left to fit"):
            admit(grid(law(), {}, corpus=1e6))


class TestBootstrap:
    def test_cells_are_drawn_together_and_strata_keep_their_number(self) -> None:
        cell = np.array([0, 0, 1, 1, 2, 2, 3, 3])
        strata = np.array([0, 0, 0, 0, 1, 1, 1, 1])
        weights = counts(cell, strata, 200, generator(1, "counts"))
        np.testing.assert_array_equal(weights[:, 0::2], weights[:, 1::2])
        np.testing.assert_array_equal(weights[:, :4].sum(axis=1), 4)
        np.testing.assert_array_equal(weights[:, 4:].sum(axis=1), 4)
        assert weights.std(axis=0).min() > 0

    def test_few_cells_per_size_are_not_resampled_size_by_size(self) -> None:
        few = fit(law(), grid(law(), {}, sd=0.001))
        many = fit(law(), grid(law(), {}, ratios=(5, 10, 20, 40), sd=0.001))
        assert not resample(few, generator(1, "b"), 20).stratified
        assert resample(many, generator(1, "b"), 20).stratified

    def test_the_same_seed_gives_the_same_draws(self) -> None:
        found = fit(law(), grid(law(), {}, ratios=(5, 10, 20, 40), sd=0.001))
        one, two = (resample(found, generator(4, "b"), 30).theta for _ in range(2))
        np.testing.assert_array_equal(one, two)

    def test_errors_are_those_that_the_design_promised(self) -> None:
        from lrt_lab.analysis.scaling import expected

        given = grid(law(), {}, ratios=(2, 8, 32, 128), sd=0.001)
        planned = expected(law(), given, TRUTH, 0.001)
        draws = resample(fit(law(), given), generator(9, "b"), 400)
        for i, name in enumerate(("alpha", "beta"), 3):
            sd = draws.natural[:, i].std()
            assert 0.5 < sd / planned.errors[name] < 1.7, name


def test_every_law_of_passes_has_a_name() -> None:
    assert len({law(name).name for name in PASSES}) == len(PASSES)
