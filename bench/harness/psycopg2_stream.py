"""A slot's messages through `psycopg2`'s streaming reader; run by `.venv-bench`'s interpreter.

    python psycopg2_stream.py TESTS_FOLDER SLOT CHANGES < ADDRESS

Messages are read one by one with the plain decoder, which is among the tests. The slot is not
advanced. Prints the seconds until CHANGES changes of rows were read.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator

import psycopg2
from psycopg2.extras import LogicalReplicationConnection, ReplicationCursor

PATIENCE_SECONDS = 60


def messages(cursor: ReplicationCursor) -> Iterator[bytes]:
    """Yield the payloads of messages as they arrive."""
    while True:
        message = cursor.read_message()
        if message is not None:
            yield message.payload
        elif not any(select.select([cursor], [], [], PATIENCE_SECONDS)):
            raise RuntimeError("the server sends nothing")


def main() -> int:
    folder, slot, changes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    sys.path[:0] = [folder]
    from support.source.plain_pgoutput import Reader  # noqa: PLC0415 - its folder is an argument

    address = sys.stdin.read()
    connection = psycopg2.connect(address, connection_factory=LogicalReplicationConnection)
    with connection, connection.cursor() as cursor:
        begin = time.perf_counter()
        options = {"proto_version": "1", "publication_names": slot}
        cursor.start_replication(slot_name=slot, decode=False, options=options)
        for number, _ in enumerate(Reader().read(messages(cursor)), 1):
            if number == changes:
                break
        print(time.perf_counter() - begin)
    return 0


if __name__ == "__main__":
    sys.exit(main())
