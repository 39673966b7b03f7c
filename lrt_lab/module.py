"""The LightningModule: a decoder, a schedule and an optimizer become a training run."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lrt_lab.assembly import assemble
from lrt_lab.backbones import Backbone
from lrt_lab.data.batch import Batch
from lrt_lab.decoder import Attend, Depth
from lrt_lab.layers import FeedForward
from lrt_lab.mixers import Mixer
from lrt_lab.routes import Route
from lrt_lab.schedules import Clock, Schedule
from lrt_lab.training.loss import training_loss
from lrt_lab.training.optimizer import Optimization, forget


class LanguageModel(LightningModule):
    """A language model: how its state travels through depth and positions, and how it is trained.

    Args:
        backbone: how state travels up through depth.
        route: what leaves position t-1, and where it enters position t.
        mixer: how one layer mixes positions; a list is a pattern that is repeated over the blocks.
        ffn: the feed-forward body of every block.
        optimizer: the optimizer and the course of its learning rate.
        schedule: in what order the route's recurrence is evaluated in training; null is one pass
            without a route, and Interleaved with two subsets with one; where nothing travels from
            position to position, as many Jacobi passes as the exact recurrence takes.
        width: features of a hidden state.
        blocks: number of blocks; a block is a mixer unit and an FFN unit.
        vocab: number of token ids; null is as many as the data has, text if nothing else is said.
        seed: keys the initial values and every random draw.
        depth_scale: multiply every unit's output by 1 / sqrt(2 blocks), which keeps a sum of all of
            them of order one.
        tied: one table for tokens and head.
        recompute: keep only what each pass leaves and evaluate it again in the backward pass: less
            memory, more time, the same gradients.
        attend: "own" confines every mixer to each position itself: no token attention.
        depth: "newest" lets units read the newest source only, where the backbone chooses among
            sources: no residual routing.
    """

    def __init__(
        self,
        backbone: Backbone,
        route: Route,
        mixer: Mixer | list[Mixer],
        ffn: FeedForward,
        optimizer: Optimization,
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
    ) -> None:
        super().__init__()
        self.optimization, self.seed = optimizer, seed
        self.decoder, self.schedule = assemble(
            backbone,
            route,
            mixer,
            ffn,
            schedule,
            width,
            blocks,
            vocab,
            seed,
            depth_scale,
            tied,
            recompute,
            attend,
            depth,
        )

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The weighted loss of the schedule's passes, in nats per token."""
        micros = self.trainer.accumulate_grad_batches
        clock = Clock(self.global_step, batch_idx % micros, self.seed, micros)
        frame, targets = self.schedule.prepare(batch, clock)
        loss = training_loss(self.decoder, self.schedule, frame, targets, clock)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Forget the optimizer's state where the schedule says so; the step alone decides."""
        if self.schedule.restarts(self.global_step):
            forget(optimizer)

    def configure_optimizers(self) -> Any:
        """The optimizer over named groups, and its learning-rate course over the run's steps."""
        optimizer = self.optimization.build(self.decoder)
        steps = int(self.trainer.estimated_stepping_batches)
        course = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: self.optimization.factor(step, steps)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": course, "interval": "step"}}
