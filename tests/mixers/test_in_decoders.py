"""Every mixer and pattern in a decoder: streaming, documents, sweeps over subsets, MUDD's reads."""

from __future__ import annotations

import pytest
import torch

from lrt_lab.backbones import AttentionResiduals, MUDDFormer
from lrt_lab.decoder import Cache, Decoder
from lrt_lab.frame import Frame
from lrt_lab.mixers import Mixer, SimplicialAttention
from lrt_lab.routes import LRT, NoRoute
from lrt_lab.schedules import Interleaved, Jacobi, Serial, SinglePass
from tests.mixers.cases import LONG, MIXERS, PLAIN
from tests.support.compare import DIFFERENT, SAME, error, rms_error
from tests.support.models import VOCAB, B, documents, exact, merged, run, small_decoder, tokens

ROUTES = {"none": NoRoute, "LRT": LRT}
each_mixer = pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
each_plain = pytest.mark.parametrize("mixer", [MIXERS[name] for name in PLAIN], ids=PLAIN)
each_route = pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
Pattern = Mixer | list[Mixer]


def calm_decoder(route: type, mixer: Pattern, **options) -> Decoder:
    return small_decoder(route=route(), mixer=mixer, routing=0.2, **options)


def decode(decoder: Decoder, frame: Frame, chunk: int, cache: Cache) -> tuple[torch.Tensor, Cache]:
    hidden = []
    for start in range(cache.length, frame.length, chunk):
        cut = slice(start, start + chunk)
        columns = [None if f is None else f[:, cut] for f in vars(frame).values()]
        new, cache = decoder.step(Frame(*columns), cache)
        hidden.append(new)
    return torch.cat(hidden, 1), cache


@each_route
@each_mixer
def test_streaming_equals_the_whole(mixer: Pattern, route: type) -> None:
    """Decoding one position at a time, in place and as values, against passes over the row."""
    # A recurrence with strong random weights is chaotic: in 37 steps it magnifies a change of 1e-15
    # a billion times.
    passes, length = (18, 18) if route is LRT else (1, LONG)
    decoder, frame = calm_decoder(route, mixer), Frame(tokens(length))
    with torch.no_grad():
        whole = run(Jacobi(passes), decoder, frame)[-1].hidden
        hidden, cache = decode(decoder, frame, 5, decoder.cache(B, 2))
    assert error(hidden, whole) <= SAME
    assert cache.length == length
    short = frame.head(9)
    values, _ = decode(decoder, short, 4, decoder.cache(B, 9))
    assert values.requires_grad
    assert error(values, whole[:, :9]) <= SAME


@each_route
@torch.no_grad()
def test_the_determinant_form_streams(route: type) -> None:
    """Its heads have three features, which the other cases' width does not allow."""
    mixer = SimplicialAttention(heads=2, window=5, pair_window=3, position="determinant")
    decoder, frame = calm_decoder(route, mixer, width=12), Frame(tokens(18), documents(7, 11))
    whole = run(Jacobi(11), decoder, frame)[-1].hidden
    assert error(decode(decoder, frame, 5, decoder.cache(B, 2))[0], whole) <= SAME


@each_mixer
def test_serial_training_equals_streaming(mixer: Pattern) -> None:
    decoder, frame = small_decoder(route=LRT(), mixer=mixer), Frame(tokens(9), documents(4, 5))
    (scored,) = run(Serial(), decoder, frame)
    assert error(scored.hidden, exact(decoder, frame)) <= SAME
    scored.hidden.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in decoder.parameters() if p.grad is not None)


@each_route
@each_mixer
@torch.no_grad()
def test_packed_equals_separate(mixer: Pattern, route: type) -> None:
    decoder, ids = calm_decoder(route, mixer), tokens(LONG)
    lengths = (1, 2, 18, 16)
    # Rotation of q and k alone depends on absolute positions.
    restarted = torch.cat([torch.arange(n) for n in lengths]).expand(B, -1)
    packed = Frame(ids, documents(*lengths), position=restarted)
    for schedule in (SinglePass(), Jacobi(3)):
        parts = [run(schedule, decoder, Frame(p))[-1].hidden for p in ids.split(lengths, 1)]
        hidden = run(schedule, decoder, packed)[-1].hidden
        assert error(hidden, torch.cat(parts, 1)) <= SAME
        open_frame = Frame(ids, memory_document=packed.document, position=restarted)
        crossing = run(schedule, decoder, open_frame)[-1].hidden
        assert error(crossing[:, 1], hidden[:, 1]) > DIFFERENT
    separate = torch.cat([exact(decoder, Frame(p)) for p in ids.split(lengths, 1)], 1)
    hidden, _ = decode(decoder, packed, 7, decoder.cache(B, LONG))
    assert error(hidden, separate) <= SAME


@each_plain
@torch.no_grad()
def test_rows_may_be_packed_differently(mixer: Pattern) -> None:
    decoder, ids = small_decoder(route=LRT(), mixer=mixer), tokens(LONG)
    document = torch.cat([documents(17, 20, rows=1), documents(3, 1, 33, rows=1)])
    both = Frame(ids, document)
    alone = [run(Jacobi(2), decoder, both.select(torch.tensor([r])))[-1].hidden for r in range(B)]
    assert error(run(Jacobi(2), decoder, both)[-1].hidden, torch.cat(alone)) <= SAME


@each_mixer
@torch.no_grad()
def test_as_many_subsets_as_positions_are_the_exact_recurrence(mixer: Pattern) -> None:
    """Every subset is one position: what earlier ones wrote has to reach later ones."""
    decoder, frame = small_decoder(route=LRT(), mixer=mixer), Frame(tokens(8))
    hidden = merged(run(Interleaved(8), decoder, frame))
    assert error(hidden, exact(decoder, frame)) <= SAME


@each_mixer
@torch.no_grad()
def test_a_subset_sees_new_columns_before_it_and_old_ones_between(mixer: Pattern) -> None:
    """A sweep over a subset equals one over all positions whose other columns are the old ones."""
    decoder, frame = small_decoder(mixer=mixer, blocks=1), Frame(tokens(LONG))
    other = Frame(tokens(LONG, seed=7))
    first = decoder.sweep(frame, frame.positions)
    subset = range(1, LONG, 3)
    again = decoder.sweep(other, subset, None, first.buffers)
    ids = frame.ids.clone()
    ids[:, 1::3] = other.ids[:, 1::3]
    whole = decoder.sweep(Frame(ids), frame.positions)
    assert error(again.hidden, whole.hidden[:, 1::3]) <= SAME
    rest = decoder.sweep(Frame(ids), range(2, LONG, 3), None, again.buffers)
    assert error(rest.hidden, whole.hidden[:, 2::3]) <= SAME


@each_plain
@pytest.mark.parametrize("schedule", [SinglePass(), Jacobi(3), Interleaved(3)], ids=type)
def test_no_gradient_comes_from_later_positions(mixer: Pattern, schedule) -> None:
    decoder = small_decoder(route=LRT(), mixer=mixer)
    ids = torch.arange(2 * 18).view(2, 18)
    for scored in run(schedule, decoder, Frame(ids)):
        t = scored.positions[2]
        top = scored.hidden[:, 2].square().sum()
        (gradient,) = torch.autograd.grad(top, decoder.embedding, retain_graph=True)
        heard = gradient[:36].view(2, 18, -1).ne(0).any(-1)
        assert heard[:, t].all() and heard[:, 0].any()
        assert not heard[:, t + 1 :].any()


@each_plain
def test_interleaving_trains(mixer: Pattern) -> None:
    """Gradients of the chunkwise form, subsets and rescans against finite differences."""
    decoder, frame = small_decoder(route=LRT(), mixer=mixer, blocks=2), Frame(tokens(18))

    def loss() -> torch.Tensor:
        passes = run(Interleaved(3), decoder, frame)
        return torch.stack([p.weight * p.hidden.sin().mean() for p in passes]).sum()

    loss().backward()
    g = torch.Generator().manual_seed(4)
    parameters = [p for p in decoder.parameters() if p.grad is not None]
    assert all(p.grad.any() for p in decoder.unit(0).body.parameters())
    directions = [torch.randn(p.shape, generator=g, dtype=p.dtype) for p in parameters]
    expected = sum((p.grad * d).sum() for p, d in zip(parameters, directions, strict=True))
    ends, eps = [], 1e-6
    with torch.no_grad():
        for side in (1, -2):
            for p, d in zip(parameters, directions, strict=True):
                p.add_(d, alpha=side * eps)
            ends.append(loss())
    assert error((ends[0] - ends[1]) / (2 * eps), expected) <= 1e-5


@each_plain
@pytest.mark.parametrize("backbone", [MUDDFormer, AttentionResiduals], ids=lambda b: b.__name__)
@torch.no_grad()
def test_other_backbones(mixer: Pattern, backbone: type) -> None:
    """MUDDFormer reads queries, keys and values apart."""
    decoder, frame = small_decoder(backbone(), LRT(), mixer=mixer), Frame(tokens(), documents(5, 7))
    whole = run(Jacobi(7), decoder, frame)[-1].hidden
    assert error(whole, exact(decoder, frame)) <= SAME


@each_mixer
@torch.no_grad()
def test_chosen_rows_and_earlier_caches(mixer: Pattern) -> None:
    decoder, frame = small_decoder(route=LRT(), mixer=mixer), Frame(tokens(9), documents(3, 6))
    rows = torch.tensor([1, 0, 1])
    empty = decoder.select(decoder.cache(B, 2), rows)
    hidden, _ = decode(decoder, frame.select(rows), 1, empty)
    assert error(hidden, exact(decoder, frame.select(rows))) <= SAME
    _, early = decode(decoder, frame.head(5), 1, decoder.cache(B, 2))
    chosen = decoder.select(early, rows)
    decode(decoder, Frame(tokens(9, seed=9), frame.document), 1, early)
    right, _ = decode(decoder, frame, 2, early)
    assert error(right, exact(decoder, frame)[:, 5:]) <= SAME
    hidden, _ = decode(decoder, frame.select(rows), 1, chosen)
    assert error(hidden, exact(decoder, frame.select(rows))[:, 5:]) <= SAME


@each_plain
@pytest.mark.parametrize("dtype, far", [(torch.float32, 1e-5), (torch.bfloat16, 0.1)], ids=str)
@torch.no_grad()
def test_narrow_models(mixer: Pattern, dtype: torch.dtype, far: float) -> None:
    """One block: in deeper random ones rounding the weights alone moves the outputs by half."""
    decoder = calm_decoder(LRT, mixer, blocks=1)
    frame = Frame(tokens(20), documents(3, 17))
    wide = run(Interleaved(3), decoder, frame)
    narrow = run(Interleaved(3), decoder.to(dtype), frame)
    for one, other in zip(wide, narrow, strict=True):
        assert other.hidden.dtype == dtype
        assert rms_error(other.hidden.double(), one.hidden) <= far


@each_plain
def test_autocast(mixer: Pattern) -> None:
    decoder = calm_decoder(LRT, mixer, blocks=1).float()
    frame = Frame(tokens(20), documents(3, 17))
    wide = run(Interleaved(3), decoder, frame)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = run(Interleaved(3), decoder, frame)
        loss = sum(p.hidden.float().square().mean() for p in narrow)
    for one, other in zip(wide, narrow, strict=True):
        assert rms_error(other.hidden.float(), one.hidden) <= 0.1
    loss.backward()
    for name, target in decoder.named_parameters():
        if target.grad is not None:
            assert target.grad.dtype == torch.float32
            assert torch.isfinite(target.grad).all(), name
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        streamed, _ = decoder.serial(frame, decoder.cache(B, 20))
    with torch.no_grad():
        assert rms_error(streamed.float(), exact(decoder, frame)) <= 0.1


def test_a_pattern_repeats() -> None:
    decoder = small_decoder(mixer=MIXERS["all"], blocks=5, vocab=VOCAB)
    names = [type(mixer).__name__ for mixer in decoder.mixers().values()]
    three = ["SimplicialAttention", "Attention", "DeltaNet"]
    assert names == [*three, *three[:2]]
    assert len({id(mixer) for mixer in decoder.mixers().values()}) == 5
    assert decoder.shape.kv == ((1, 4), (1, 4), (2, 4), (1, 4), (1, 4))
