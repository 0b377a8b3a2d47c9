"""What all pages look at: the lake, and what was read of it already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chronolake.ui.overview import Overview

if TYPE_CHECKING:
    from chronolake.config import LakeConfig


class Site:
    """A lake that is looked at for as long as the page is up.

    Args:
        config: the lake's configuration.
    """

    def __init__(self, config: LakeConfig) -> None:
        self.config = config
        self.overview = Overview(config)

    def close(self) -> None:
        """Begin nothing more."""
        self.overview.close()

    @property
    def label(self) -> str:
        """The lake in a few words that hold no secret."""
        return self.config.path.name or str(self.config.path)
