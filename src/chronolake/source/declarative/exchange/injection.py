"""What is put into a request besides what its requester says: cursors, pages, partitions, keys."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chronolake.errors import ConfigurationError
from chronolake.source.declarative.templating.templates import as_text, is_template

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from chronolake.source.declarative.language.options import RequestOption

_AGAIN = "Put each value into a request once."


@dataclass
class Injection:
    """Values for the four places of a request.

    Attributes:
        place: who puts them there, as an error message says it, e.g. "the paginator".
    """

    params: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, Any] = field(default_factory=dict)
    body_data: dict[str, Any] | str = field(default_factory=dict)
    body_json: dict[str, Any] = field(default_factory=dict)
    place: str = "the stream"

    def put(
        self, option: RequestOption, value: Any, config: Mapping[str, Any] | None = None
    ) -> None:
        """Puts a value where an option says.

        Args:
            option: the place; names in it may be templates.
            value: any value; None stays None and is not sent.
            config: for templates in the option.

        Raises:
            ConfigurationError: the option's path leads through something that is no object, or
                its name is a template and there is no config.
        """
        target = self._target(option)
        texts = option.field_path or [str(option.field_name)]
        names = [_name(text, option, config) for text in texts]
        for name in names[:-1]:
            target = target.setdefault(name, {})
            if not isinstance(target, dict):
                raise _collision(".".join(names), self.place, self.place)
        target[names[-1]] = value

    def _target(self, option: RequestOption) -> dict[str, Any]:
        if option.inject_into == "request_parameter":
            return self.params
        if option.inject_into == "header":
            return self.headers
        if option.inject_into == "body_json":
            return self.body_json
        if isinstance(self.body_data, str):
            raise _text_and_more(self.place, self.place)
        return self.body_data


def merged(injections: Iterable[Injection]) -> Injection:
    """All of them in one.

    Args:
        injections: in the order in which their keys are to be sent; none of them is changed.

    Raises:
        ConfigurationError: two put the same key in the same place. In JSON bodies two may say the
            same, and objects are merged.
    """
    result = Injection()
    places: dict[str, dict[str, str]] = {"params": {}, "headers": {}, "body_data": {}}
    json_places: dict[str, str] = {}
    text_from: str | None = None
    for one in injections:
        for kind, taken in places.items():
            values = getattr(one, kind)
            if isinstance(values, str):
                text_from = _kept_alone(text_from, taken, one)
                result.body_data = values
                continue
            if values and kind == "body_data" and text_from is not None:
                raise _text_and_more(text_from, one.place)
            _add(getattr(result, kind), values, taken, one.place)
        _add_json(result.body_json, one.body_json, (), json_places, one.place)
    return result


def _name(text: str, option: RequestOption, config: Mapping[str, Any] | None) -> str:
    if not is_template(text):
        return text
    if config is None:
        raise ConfigurationError(
            f"The name {text!r} of a request option is a template, which cannot be used here.",
            hint="Write the name out.",
        )
    return as_text(text, {"config": config, "parameters": option.parameters})


def _kept_alone(text_from: str | None, taken: Mapping[str, str], one: Injection) -> str:
    other = text_from or next(iter(taken.values()), None)
    if other is not None:
        raise _text_and_more(other, one.place)
    return one.place


def _add(
    target: dict[str, Any], values: Mapping[str, Any], taken: dict[str, str], place: str
) -> None:
    for key, value in values.items():
        if key in target:
            raise _collision(key, taken[key], place)
        target[key] = value
        taken[key] = place


def _add_json(
    target: dict[str, Any],
    values: Mapping[str, Any],
    path: tuple[str, ...],
    taken: dict[str, str],
    place: str,
) -> None:
    for key, value in values.items():
        here = (*path, str(key))
        if key not in target:
            target[key] = deepcopy(value)
            taken[".".join(here)] = place
        elif isinstance(target[key], dict) and isinstance(value, dict):
            _add_json(target[key], value, here, taken, place)
        elif target[key] != value:
            raise _collision(".".join(here), _first(taken, here), place)


def _first(taken: Mapping[str, str], path: tuple[str, ...]) -> str:
    """Who put the value of a path: the one that put it, or an object around it."""
    return next(
        taken[".".join(path[:end])]
        for end in range(len(path), 0, -1)
        if ".".join(path[:end]) in taken
    )


def _collision(key: str, first: str, second: str) -> ConfigurationError:
    where = f"twice by {first}" if first == second else f"by {first} and by {second}"
    return ConfigurationError(f"The key {key!r} of a request is set {where}.", hint=_AGAIN)


def _text_and_more(first: str, second: str) -> ConfigurationError:
    return ConfigurationError(
        f"The body of a request is a text by {first}, and {second} adds to it.", hint=_AGAIN
    )
