"""The fields that components have, and keys that are nearly one of them.

A key that no component knows is passed over, as in the reference, and may be there on purpose.
"""

from __future__ import annotations

import difflib
from functools import cache
from typing import TYPE_CHECKING, Any, Final, get_args

from chronolake.source.declarative.language import budget, checking, configuration, dynamic, streams
from chronolake.source.declarative.language.base import Component

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Who imports these has all components.
_MODULES: Final = (budget, checking, configuration, dynamic, streams)
#: How near a key has to be to a field to be taken for it.
_CLOSE: Final = 0.8


def misspelled_in(node: Mapping[str, Any], kind: str) -> Iterator[tuple[str, str]]:
    """Keys of a component that are no fields, each with the field that it is nearly.

    Args:
        node: the component, with what it inherits in its place.
        kind: its `type`.
    """
    fields = _fields().get(kind)
    if fields is None or kind.startswith("Custom"):
        return
    inherited = node.get("$parameters")
    given = inherited if isinstance(inherited, dict) else {}
    # A field that has to be there is told as missing, with the key that is near it.
    left = [name for name, is_required in fields.items() if name not in node and not is_required]
    for key in node:
        if key in fields or key in given:
            continue
        if near := difflib.get_close_matches(key, left, n=1, cutoff=_CLOSE):
            yield key, near[0]


@cache
def _fields() -> dict[str, dict[str, bool]]:
    """The fields of each kind, and whether they have to be there."""
    return {
        name: {
            field.alias or key: field.is_required() for key, field in component.model_fields.items()
        }
        for component in _below(Component)
        if "type" in component.model_fields
        for name in get_args(component.model_fields["type"].annotation)
    }


def _below(kind: type[Component]) -> Iterator[type[Component]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)
