"""What the sources of the tests offer."""

from __future__ import annotations

from chronolake.config import Project
from chronolake.limits import StreamCapabilities
from chronolake.source.protocol import CaptureMethod, StreamDescriptor, raw_folder


def pulled_stream(project: Project, name: str) -> StreamDescriptor:
    """A stream of the pipeline `shop` that tells every change."""
    return StreamDescriptor(
        StreamCapabilities(name, reports_changes=True, is_reimported=False),
        CaptureMethod.EVERY_CHANGE,
        epsilon_micros=1,
        folder=raw_folder(project, "shop", name),
        is_ours=True,
    )
