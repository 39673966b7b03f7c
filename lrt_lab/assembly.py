"""From the parts that a config names to a decoder and the schedule that trains it.

Light: no Lightning and no data, so that a model can be described at once.
"""

from __future__ import annotations

from lrt_lab.backbones import Backbone
from lrt_lab.decoder import Attend, Decoder, Depth
from lrt_lab.errors import UserError
from lrt_lab.layers import FeedForward
from lrt_lab.mixers import Mixer
from lrt_lab.routes import Route
from lrt_lab.schedules import Interleaved, Jacobi, Schedule, SinglePass

#: The parts of a config that names none.
DEFAULTS = {
    "model.backbone": "PreNorm",
    "model.route": "NoRoute",
    "model.mixer": "Attention",
    "model.ffn": "SquaredReLU",
    "model.optimizer": "AdamW",
}
#: Token ids of text: the bytes and the document separator.
TEXT = 257


def assemble(
    backbone: Backbone,
    route: Route,
    mixer: Mixer | list[Mixer],
    ffn: FeedForward,
    schedule: Schedule | None = None,
    width: int = 64,
    blocks: int = 4,
    vocab: int | None = None,
    seed: int = 1,
    depth_scale: bool = False,
    tied: bool = False,
    recompute: bool = False,
    attend: Attend = "all",
    depth: Depth = "all",
) -> tuple[Decoder, Schedule]:
    """The decoder and its schedule; arguments as `lrt_lab.module.LanguageModel` has them.

    Raises:
        UserError: a schedule that the route cannot be trained with.
    """
    if schedule is None:
        loops = route.traits.loops
        alone = SinglePass() if loops == 1 else Jacobi(loops)
        schedule = Interleaved() if route.traits.recurrent else alone
    require_trainable(route, schedule)
    ids = TEXT if vocab is None else vocab
    decoder = Decoder(
        width,
        blocks,
        ids,
        backbone,
        route,
        mixer,
        ffn,
        seed=seed,
        depth_scale=depth_scale,
        tied=tied,
        recompute=recompute,
        attend=attend,
        depth=depth,
    )
    return decoder, schedule


def require_trainable(route: Route, schedule: Schedule) -> None:
    """Refuse a schedule that a route cannot be trained with.

    Raises:
        UserError: it lets no memory in, or does so where this route leaves none.
    """
    if route.traits.fed and not schedule.feeds_memory:
        raise UserError(
            f"model.schedule={type(schedule).__name__} never lets memory in: "
            f"with model.route={type(route).__name__}, choose another schedule, or NoRoute"
        )
    if route.traits.recurrent and schedule.silent and not route.traits.silent:
        raise UserError(
            f"model.schedule={type(schedule).__name__} lets memory in at silent positions only:"
            f" with model.route={type(route).__name__}, choose another schedule, or Coconut"
        )
