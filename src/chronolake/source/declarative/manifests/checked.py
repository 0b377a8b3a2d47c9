"""The streams by which a manifest wants a connection to be tried."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter, ValidationError

from chronolake.source.declarative.language.checking import Check, CheckDynamicStream, CheckStream
from chronolake.source.declarative.manifests.problems import Spot, problems_in
from chronolake.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection

    from chronolake.source.declarative.manifests.located import Mapped
    from chronolake.source.declarative.manifests.manifest import Manifest
    from chronolake.source.declarative.manifests.problems import Problem

_KEY: Final = "check"
_CONFIGS: Final = "dynamic_streams_check_configs"
_CHECK: Final[TypeAdapter[CheckStream | CheckDynamicStream]] = TypeAdapter(Check)


def check_of(
    content: Mapped, templates: Collection[str]
) -> tuple[CheckStream | CheckDynamicStream | None, list[Problem]]:
    """What a manifest says of trying a connection, or None; and what is wrong with that.

    Args:
        content: the manifest.
        templates: the names of its dynamic streams.
    """
    described = content.get(_KEY)
    if not described:
        return None, []
    try:
        found = _CHECK.validate_python(described)
    except ValidationError as failure:
        return None, problems_in(failure, described, Spot.of(content, (_KEY,)))
    if isinstance(found, CheckDynamicStream):
        return found, []
    return found, [
        Spot.of(content, (_KEY, _CONFIGS, number, "dynamic_stream_name")).problem(
            f"there are no dynamic streams {one.dynamic_stream_name}",
            hint=did_you_mean(
                one.dynamic_stream_name, templates, f"There are: {', '.join(templates) or 'none'}."
            ),
        )
        for number, one in enumerate(found.dynamic_streams_check_configs)
        if one.dynamic_stream_name not in templates
    ]


def checked_streams(manifest: Manifest, wanted: Collection[str] | None) -> tuple[str, ...]:
    """The names of the streams that tell whether a connection works.

    Args:
        manifest: the manifest, with the streams that configuration and API tell.
        wanted: the streams that matter, or None: all of them. Of those that are made of templates
            no others are looked at.

    Returns:
        The names, each once, also of streams that nobody knows; not of those that cannot be read,
        which the manifest's problems tell. The first stream's if there would be none.
    """
    names = tuple(name for name in manifest.streams if wanted is None or name in wanted)
    check = manifest.check
    if isinstance(check, CheckDynamicStream):
        return names[: max(check.stream_count, 0)] if check.use_check_availability else ()
    if check is None:
        return names[:1]
    told = {problem.stream for problem in manifest.problems}
    found = [
        name
        for name in check.stream_names
        if name in manifest.streams or (name not in told and manifest.is_whole)
    ]
    for one in check.dynamic_streams_check_configs:
        made = manifest.generated.get(one.dynamic_stream_name, ())
        found += islice((name for name in made if name in names), one.stream_count)
    return tuple(dict.fromkeys(found)) or names[:1]
