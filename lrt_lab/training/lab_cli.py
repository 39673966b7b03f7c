"""LabCLI: Lightning's command line around the lab's module and data.

Parts are chosen by class name (``--model.route LRT --model.route.gamma 0.2``): the typed base
classes in `LanguageModel`'s signature are the registry, and every exported subclass joins it by
being imported.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jsonargparse import ArgumentError, Namespace
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from lrt_lab.assembly import DEFAULTS
from lrt_lab.data.base import Data
from lrt_lab.errors import UserError
from lrt_lab.module import LanguageModel
from lrt_lab.parts import parts_of
from lrt_lab.training.config import merge_configs
from lrt_lab.training.evaluate import Evaluation
from lrt_lab.training.explain import explain
from lrt_lab.training.published import Published


@dataclass(frozen=True)
class Recording:
    """How densely a run is recorded.

    Args:
        log_every: steps between rows of training loss.
        checkpoint_every: steps between checkpoints, from which a cut run goes on.
        tensorboard: whether to write TensorBoard files beside the run's own metrics.jsonl.
        depth_every: steps between diagnoses of how state travels through depth, to depth.jsonl and
            TensorBoard; 0 is never.
        contraction_every: the same for whether a route's recurrence contracts, to
            contraction.jsonl.
    """

    log_every: int = 10
    checkpoint_every: int = 100
    tensorboard: bool = True
    depth_every: int = 0
    contraction_every: int = 0

    def __post_init__(self) -> None:
        if self.log_every < 1 or self.checkpoint_every < 1:
            raise UserError(
                f"recording.log_every={self.log_every}, "
                f"checkpoint_every={self.checkpoint_every}: at least 1 each"
            )
        for name in ("depth_every", "contraction_every"):
            if getattr(self, name) < 0:
                raise UserError(f"recording.{name}={getattr(self, name)}: give 0 (never) or more")


class LabCLI(LightningCLI):
    """Parses a config.

    Building the objects is a step of its own (`build`), so that pricing needs no data.
    """

    def __init__(self, args: list[str] | dict[str, Any]) -> None:
        quiet()
        try:
            super().__init__(
                LanguageModel,
                save_config_callback=None,
                seed_everything_default=False,
                args=stacked(args) if isinstance(args, list) else Namespace(with_data(args)),
                run=False,
                auto_configure_optimizers=False,
                load_from_checkpoint_support=False,
                parser_kwargs={
                    "exit_on_error": False,
                    # Half an option is a misspelt one.
                    "allow_abbrev": False,
                    "prog": "lrt-lab fit",
                    "description": FIT,
                },
            )
        except ArgumentError as error:
            raise UserError(explain(str(error), options(self.parser))) from None

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Trainer and model as Lightning adds them, and data, which need not know Lightning."""
        parser.add_lightning_class_args(self.trainer_class, "trainer")
        parser.add_lightning_class_args(LanguageModel, "model")
        parser.add_subclass_arguments(Data, "data", required=True)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--seed", type=int, default=1, help="Keys every random draw of the run."
        )
        parser.add_argument(
            "--threads", type=int, default=1, help="CPU threads; results depend on their number."
        )
        parser.add_argument(
            "--folder", type=str, default=None, help="Run folder (default: runs/fit/<hash>)."
        )
        parser.add_class_arguments(Evaluation, "evaluation")
        parser.add_class_arguments(Recording, "recording")
        parser.add_class_arguments(Published, "published")
        parser.link_arguments("seed", "model.seed")
        parser.link_arguments("seed", "data.init_args.seed")
        parser.set_defaults({**DEFAULTS, "trainer.devices": 1})

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        if isinstance(args, Namespace):
            self.config = parser.parse_object(args.as_dict())
        else:
            self.config = parser.parse_args(args)
        chosen, model = self.config["data"], self.config["model"]
        name = chosen["class_path"].rpartition(".")[2]
        self.data = parts_of(Data)[name](**chosen["init_args"].as_dict())
        if model["vocab"] is None:
            model["vocab"] = self.data.vocabulary
        if model["vocab"] < self.data.vocabulary:
            raise UserError(
                f"model.vocab={model['vocab']}: {name} has {self.data.vocabulary} token ids; "
                "give at least as many, or null"
            )

    def instantiate_classes(self) -> None:
        """Nothing yet: see `build`."""

    def build(self) -> tuple[LanguageModel, Data]:
        """Instantiate the config: a freshly initialised model, and its data."""
        try:
            self.config_init = self.parser.instantiate(self.config)
        except ArgumentError as error:
            raise UserError(explain(str(error), options(self.parser))) from None
        except ValueError as error:
            raise refusal(error) from None
        return self.config_init["model"], self.config_init["data"]


def refusal(error: ValueError) -> ValueError:
    """What a part said of its options, where the parser wraps it.

    It does so for a part that may be null or a list. The error itself where no part said anything.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError):
            return cause
        cause = cause.__cause__
    said = re.search(r"^  - (\w[\w. ]*=.*)$", str(error), re.MULTILINE)
    return UserError(said[1]) if said else error


def stacked(args: list[str]) -> list[str]:
    """Command-line arguments with all config files merged into one that comes first.

    So that files stack as a suite's do: a class that is named brings its own defaults.
    """
    files, flags, rest = [], [], iter(args)
    for arg in rest:
        name, equals, value = arg.partition("=")
        if name in ("-c", "--config"):
            files.append(value if equals else next(rest, ""))
        else:
            flags.append(arg)
    config = merge_configs(files)
    if any(flag.partition("=")[0] in ("--data", "--data.class_path") for flag in flags):
        config.pop("data", None)
    else:
        config = with_data(config)
    return [f"--config={json.dumps(config)}", *flags]


def with_data(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with its data's class said; without one it is text, whose options may be flat."""
    data = config.get("data") or {}
    if isinstance(data, Mapping) and "class_path" not in data:
        data = {"class_path": "TextData", "init_args": data}
    return {**config, "data": data}


FIT = "Train one cell, evaluate it, and record it. Defaults < --config files in order < flags."


def quiet() -> None:
    """Silence what Lightning says at every start whatever the user does."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in (
        r".*does not have many workers.*",
        r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*",
        r".*`IterableDataset` has `__len__` defined.*",
        r".*GPU available but not used.*",
        r".*Checkpoint directory .* exists and is not empty.*",
    ):
        warnings.filterwarnings("ignore", message=message)


def options(parser: LightningArgumentParser) -> list[str]:
    """Every option's dotted name."""
    return [action.dest for action in parser._actions if action.dest != "help"]
