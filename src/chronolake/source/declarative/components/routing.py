"""Routers that are classes of the connector's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from chronolake.errors import SourceError
from chronolake.source.declarative.components.responses import slice_seen
from chronolake.source.declarative.streamslice import StreamSlice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chronolake.source.declarative.exchange.injection import Injection
    from chronolake.source.declarative.language.streams import CustomPartitionRouter

#: Where a router of the connector's own has what goes into requests.
_PLACES: Final = {
    "get_request_params": "params",
    "get_request_headers": "headers",
    "get_request_body_data": "body_data",
    "get_request_body_json": "body_json",
}


@dataclass(frozen=True)
class OwnRouter:
    """Partitions that a class of the connector's own tells."""

    router: CustomPartitionRouter

    def partitions(self) -> Iterator[StreamSlice]:
        """The partitions, one after the other; raises SourceError where the class fails."""
        for one in self.router.calls.each("stream_slices"):
            partition = getattr(one, "partition", one)
            extra = getattr(one, "extra_fields", None) or {}
            if not isinstance(partition, Mapping):
                raise self._no_slice()
            yield StreamSlice(self._told(partition), {}, dict(extra))

    def _told(self, partition: Mapping[str, Any]) -> dict[str, Any]:
        """A partition as states have it, whatever kinds of texts and numbers the class uses."""
        try:
            text = orjson.dumps(dict(partition), option=orjson.OPT_NON_STR_KEYS)
        except TypeError as failure:
            raise self._no_slice() from failure
        told: dict[str, Any] = orjson.loads(text)
        return told

    def _no_slice(self) -> SourceError:
        return SourceError(
            f"{self.router.class_name}.stream_slices gives what is no slice.",
            hint="A slice is names with their values, as JSON has them.",
        )

    def parent_state(self) -> dict[str, Any] | None:
        """How far the parents are, if the class tells it."""
        calls = self.router.calls
        return calls.mapping("get_stream_state") if calls.has("get_stream_state") else None


def inject_own(router: CustomPartitionRouter, into: Injection, partition: StreamSlice) -> None:
    """Put into a request what a class of the connector's own wants for a partition."""
    calls, one = router.calls, slice_seen(partition)
    for method, place in _PLACES.items():
        if calls.has(method):
            getattr(into, place).update(calls.mapping(method, stream_slice=one) or {})
