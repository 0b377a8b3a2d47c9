"""Page: a table's metadata: columns, key, properties, snapshots, and files by partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.routing import Route

from chronolake.inspect.catalog import look_up
from chronolake.inspect.table_metadata import inside
from chronolake.ui import links
from chronolake.ui.pages.tables import SIGHTS
from chronolake.ui.rendering import SYSTEM_COLUMNS, page
from chronolake.ui.site import seen_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from chronolake.inspect.table_metadata import Inside
    from chronolake.ui.site import Site

#: The maximum number of snapshots and of partitions.
MOST: Final = 100


def whole(request: Request) -> Response:
    """Render the page."""
    site: Site = request.app.state.site
    name = links.required_table_of(request, "name")
    found = look_up(site.config, name)
    reported = inside(site.config, name, snapshots=MOST)
    seen = seen_of(site.config, found)
    return page(
        request,
        "inside.html",
        title=f"Inside {name}",
        section="tables",
        name=name,
        found=found,
        told=reported,
        seen=seen,
        known=site.freshness([seen], with_waiting=True).get(name),
        limits=site.config.maintenance,
        sights=SIGHTS,
        system=SYSTEM_COLUMNS,
        most=MOST,
        **_partitions(reported),
    )


def _partitions(told: Inside) -> dict[str, Any]:
    """Return the partitions with the most bytes, and their partition fields."""
    every = range(len(told.partitions))
    largest = sorted(every, key=lambda place: -told.partitions[place].bytes)[:MOST]
    shown = [told.partitions[place] for place in sorted(largest)]
    # The partition spec may have changed, and old files keep their partitions.
    fields = dict.fromkeys(field for one in shown for field in one.values)
    return {"partitions": shown, "fields": [*fields]}


ROUTES: Final = (Route("/table", whole),)
