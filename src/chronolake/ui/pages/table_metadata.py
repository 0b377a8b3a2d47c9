"""Page: a table's metadata: columns, key, properties, snapshots, and files by partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.routing import Route

from chronolake.inspect.catalog import look_up
from chronolake.inspect.table_metadata import read_table_metadata
from chronolake.ui import links
from chronolake.ui.pages.tables import CAPTURE_METHODS
from chronolake.ui.rendering import SYSTEM_COLUMNS, render_page
from chronolake.ui.site import table_overview

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from chronolake.inspect.table_metadata import TableMetadata
    from chronolake.ui.site import Site

#: The maximum number of snapshots and of partitions.
MAX_ENTRIES: Final = 100


def show_table(request: Request) -> Response:
    """Render the page."""
    site: Site = request.app.state.site
    name = links.required_table_of(request, "name")
    found = look_up(site.config, name)
    metadata = read_table_metadata(site.config, name, snapshots=MAX_ENTRIES)
    seen = table_overview(site.config, found)
    return render_page(
        request,
        "table_metadata.html",
        title=f"Metadata of {name}",
        section="tables",
        name=name,
        found=found,
        metadata=metadata,
        seen=seen,
        known=site.freshness([seen], with_waiting=True).get(name),
        limits=site.config.maintenance,
        capture_methods=CAPTURE_METHODS,
        system=SYSTEM_COLUMNS,
        **_largest_partitions(metadata),
    )


def _largest_partitions(metadata: TableMetadata) -> dict[str, Any]:
    """Return the partitions with the most bytes, and their partition fields."""
    numbers = range(len(metadata.partitions))
    largest = sorted(numbers, key=lambda place: -metadata.partitions[place].bytes)[:MAX_ENTRIES]
    shown = [metadata.partitions[place] for place in sorted(largest)]
    # The partition spec may have changed, and old files keep their partitions.
    fields = dict.fromkeys(field for partition in shown for field in partition.values)
    return {"partitions": shown, "fields": [*fields]}


ROUTES: Final = (Route("/table", show_table),)
