"""What the sources of the tests offer."""

from __future__ import annotations

from chronolake.config import Project
from chronolake.limits import StreamTraits
from chronolake.source.protocol import OfferedStream, Sight, raw_folder


def pulled_stream(project: Project, name: str) -> OfferedStream:
    """A stream of the pipeline `shop` that tells every change."""
    return OfferedStream(
        StreamTraits(name, tells_changes=True, is_reimported=False),
        Sight.EVERY_CHANGE,
        epsilon_micros=1,
        folder=raw_folder(project, "shop", name),
        is_ours=True,
    )
