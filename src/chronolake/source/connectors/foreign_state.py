"""States of other programs that run the same connectors: Airbyte, PyAirbyte, Meltano and others.

Sources: the Airbyte protocol's `AirbyteStateMessage`, the connection states of Airbyte's API (camel
case, as in its UI), the messages that PyAirbyte stores, the Singer specification, and Meltano's
`state get` and stored states.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from chronolake.errors import ConfigurationError
from chronolake.formatting import did_you_mean

_STATES: Final = ("STREAM", "GLOBAL", "LEGACY")
_AIRBYTE: Final = (
    "Export the state of the connection (Airbyte's UI shows it in the connection's settings), or "
    "write the STATE messages of the connector as a JSON list."
)
_SINGER: Final = (
    'Write the last state of the tap, such as {"bookmarks": {…}}, or what `meltano state get` '
    "prints."
)


@dataclass(frozen=True)
class AirbyteState:
    """The state of an Airbyte connection.

    Attributes:
        streams: the states of single streams, by their namespace and name.
        shared: the state of all streams as a connector reports it: `{"global": …}` or
            `{"data": …}`; None if each stream has its own.
    """

    streams: dict[tuple[str, str], Any]
    shared: dict[str, Any] | None = None


def airbyte_state(content: Any) -> AirbyteState:
    """Return the state in a file of Airbyte.

    Args:
        content: a state message, a list of them, or the state of a connection.

    Raises:
        ConfigurationError: it has another form.
    """
    streams: dict[tuple[str, str], Any] = {}
    shared: dict[str, Any] | None = None
    for message in _airbyte_messages(content):
        kind = message.get("type")
        if kind == "STREAM" or (kind is None and _get(message, "stream")):
            descriptor, state = _stream_state(message.get("stream"))
            streams[descriptor] = state
        elif kind == "GLOBAL":
            shared = {"global": _global_state(message.get("global") or message.get("global_"))}
        else:
            data = message.get("data")
            if not isinstance(data, Mapping):
                raise _shape_error("A legacy state has no `data`", _AIRBYTE)
            shared = {"data": dict(data)}
    if shared is not None and streams:
        raise _shape_error("It has both a state of all streams and states of single ones", _AIRBYTE)
    if shared is None and not streams:
        raise _shape_error("It contains no state", _AIRBYTE)
    return AirbyteState(streams, shared)


def _airbyte_messages(content: Any) -> list[Mapping[str, Any]]:
    """Return the state messages in a file, in the protocol's form."""
    if isinstance(content, list):
        return [message for item in content for message in _airbyte_messages_in(item)]
    if isinstance(content, Mapping):
        return _airbyte_messages_in(content)
    raise _shape_error("It is not a JSON object or list", _AIRBYTE)


def _airbyte_messages_in(item: Any) -> list[Mapping[str, Any]]:
    if not isinstance(item, Mapping):
        raise _shape_error("An element of its list is not an object", _AIRBYTE)
    kind = item.get("type")
    if kind == "STATE":
        return _airbyte_messages(item.get("state"))
    if kind in _STATES:
        return [item]
    if kind is not None and isinstance(kind, str) and kind.isupper():
        # Other messages of a connector's output.
        return []
    if (state_type := _get(item, "stateType")) is not None:
        return _of_connection(item, state_type)
    if _get(item, "streamDescriptor") is not None:
        return [{"type": "STREAM", "stream": item}]
    # A state from before the protocol had types.
    return [{"type": "LEGACY", "data": item}]


def _of_connection(item: Mapping[str, Any], kind: Any) -> list[Mapping[str, Any]]:
    """Return the state of a connection, as Airbyte's API has it, as messages."""
    match str(kind).lower():
        case "stream":
            found = _get(item, "streamState") or []
            return [{"type": "STREAM", "stream": stream} for stream in found]
        case "global":
            return [{"type": "GLOBAL", "global": _get(item, "globalState")}]
        case "legacy":
            return [{"type": "LEGACY", "data": item.get("state")}]
        case _:
            return []


def _stream_state(found: Any) -> tuple[tuple[str, str], Any]:
    descriptor = _get(found, "streamDescriptor") if isinstance(found, Mapping) else None
    if not isinstance(descriptor, Mapping) or not isinstance(name := descriptor.get("name"), str):
        raise _shape_error("A state of a stream has no descriptor with a name", _AIRBYTE)
    state = _get(found, "streamState")
    if state is not None and not isinstance(state, Mapping):
        raise _shape_error(f"The state of the stream {name} is not an object", _AIRBYTE)
    return (descriptor.get("namespace") or "", name), state or None


def _global_state(found: Any) -> dict[str, Any]:
    if not isinstance(found, Mapping):
        raise _shape_error("A global state has no `global`", _AIRBYTE)
    streams = [_stream_state(stream) for stream in _get(found, "streamStates") or []]
    return {
        "shared_state": _get(found, "sharedState"),
        "stream_states": [
            {
                "stream_descriptor": {"name": name, **({"namespace": space} if space else {})},
                "stream_state": state,
            }
            for (space, name), state in streams
        ],
    }


def _get(found: Mapping[str, Any], name: str) -> Any:
    """Return a value by its name in camel case, or in snake case as the protocol has it."""
    snake = "".join(f"_{char.lower()}" if char.isupper() else char for char in name)
    return found.get(snake, found.get(name))


def singer_state(content: Any) -> dict[str, Any]:
    """Return the state of a tap in a file of Singer or Meltano.

    Args:
        content: a state, a STATE message, or a list of them; the last one is used.

    Raises:
        ConfigurationError: it has another form.
    """
    if isinstance(content, list):
        states = [
            item
            for item in content
            if not isinstance(item, Mapping) or item.get("type", "STATE") == "STATE"
        ]
        content = states[-1] if states else None
    if not isinstance(content, Mapping):
        raise _shape_error("It is not a JSON object", _SINGER)
    if content.get("type") == "STATE":
        return singer_state(content.get("value"))
    if content and content.keys() <= {"completed", "partial"}:
        completed, partial = content.get("completed") or {}, content.get("partial") or {}
        if not isinstance(completed, Mapping) or not isinstance(partial, Mapping):
            raise _shape_error("A state of Meltano is not an object", _SINGER)
        return singer_state(_merge(completed, partial))
    if content.keys() == {"singer_state"}:
        return singer_state(content["singer_state"])
    if not content or not isinstance(content.get("bookmarks", {}), Mapping):
        raise _shape_error("It contains no bookmarks", _SINGER)
    return dict(content)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        other = merged.get(name)
        is_nested = isinstance(other, Mapping) and isinstance(value, Mapping)
        merged[name] = _merge(other, value) if is_nested else value  # type: ignore[arg-type]
    return merged


def unknown_stream_error(name: str, known: Collection[str]) -> ConfigurationError:
    """Return the error about a state of a stream that the connector does not have."""
    return ConfigurationError(
        f"The state names the stream {name!r}, which the source does not have.",
        hint=did_you_mean(name, known, f"It has: {', '.join(known) or 'none'}."),
    )


def _shape_error(what: str, hint: str) -> ConfigurationError:
    return ConfigurationError(f"The file does not contain a valid state. {what}.", hint=hint)
