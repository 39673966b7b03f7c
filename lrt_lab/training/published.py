"""What a source says of a model that a config rebuilds."""

from __future__ import annotations

from dataclasses import dataclass

from lrt_lab.errors import UserError


@dataclass(frozen=True)
class Published:
    """Numbers that `lrt-lab describe` shows beside its own; training takes no notice.

    Args:
        parameters: how many the source counts; null is not said.
        about: where the number is from, and what explains a difference.
    """

    parameters: int | None = None
    about: str = ""

    def __post_init__(self) -> None:
        if self.parameters is not None and self.parameters < 1:
            raise UserError(f"published.parameters={self.parameters}: give a count, or null")

    def beside(self, total: int) -> str | None:
        """One line on a model of ``total`` parameters."""
        if self.parameters is None:
            return None
        off = total - self.parameters
        line = (
            f"published: {self.parameters:,} parameters; these are {total:,}, {off:+,} or"
            f" {off / self.parameters:+.2%}"
        )
        return f"{line}: {' '.join(self.about.split())}" if self.about else line
