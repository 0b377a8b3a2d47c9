"""Stream descriptors of the sources in the tests."""

from __future__ import annotations

from chronolake.config import Project
from chronolake.source.protocol import CaptureMethod, StreamDescriptor, raw_folder
from chronolake.stream_modes import StreamCapabilities


def pulled_stream(project: Project, name: str) -> StreamDescriptor:
    """Return a stream of the pipeline `shop` that contains every change."""
    return StreamDescriptor(
        StreamCapabilities(name, reports_changes=True),
        CaptureMethod.EVERY_CHANGE,
        epsilon_micros=1,
        folder=raw_folder(project, "shop", name),
        is_ours=True,
    )
