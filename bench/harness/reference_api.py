"""A read by the reference in its own environment; prints its records and seconds as JSON.

`.venv-compat/bin/python bench/harness/reference_api.py` gets `{manifest, config, stream}` on its
standard input.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

from airbyte_cdk.models import (  # noqa: E402
    AirbyteStream,
    ConfiguredAirbyteCatalog,
    ConfiguredAirbyteStream,
    DestinationSyncMode,
    SyncMode,
)
from airbyte_cdk.models import Type as Kind  # noqa: E402
from airbyte_cdk.sources.declarative.concurrent_declarative_source import (  # noqa: E402
    ConcurrentDeclarativeSource,
)


def main() -> None:
    asked = json.load(sys.stdin)
    stream = AirbyteStream(
        name=asked["stream"],
        json_schema={},
        supported_sync_modes=[SyncMode.full_refresh, SyncMode.incremental],
    )
    catalog = ConfiguredAirbyteCatalog(
        streams=[
            ConfiguredAirbyteStream(
                stream=stream,
                sync_mode=SyncMode.incremental,
                destination_sync_mode=DestinationSyncMode.append,
            )
        ]
    )
    source = ConcurrentDeclarativeSource(
        catalog=catalog, config=asked["config"], state=[], source_config=asked["manifest"]
    )
    begin = time.perf_counter()
    found = source.read(logging.getLogger("bench"), asked["config"], catalog, [])
    records = sum(message.type is Kind.RECORD for message in found)
    print(json.dumps({"records": records, "seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main()
