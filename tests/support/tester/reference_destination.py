"""A small, complete destination: the guides' rules as SQL statements on DuckDB, in memory.

It shares no code with `chronolake.tester.model`, so that the two check each other, and it shows how
little a destination needs. Its faults can be switched on, one by one, to see that the tester finds
them.
"""

# ruff: noqa: N802 - the methods have the names of the calls

from __future__ import annotations

import base64
import binascii
import csv
import gzip
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import grpc
import pyarrow.parquet as pq
import zstandard
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CBC
from cryptography.hazmat.primitives.padding import PKCS7

from chronolake.protos import common_pb2 as common
from chronolake.protos import destination_sdk_pb2 as sdk
from chronolake.protos import destination_sdk_pb2_grpc as rpc
from support.tester.reference_migrations import Migrations
from support.tester.reference_sql import (
    ACTIVE,
    END,
    MILLI,
    START,
    Refused,
    ident,
    settled,
    sql_type,
    text,
)


@dataclass
class Stored:
    """A table's columns by name, as they were declared."""

    columns: dict[str, common.Column] = field(default_factory=dict)

    def key(self):
        return [c.name for c in self.columns.values() if c.primary_key and c.name != START]


class Files:
    """Parser of the files of one request, into lists of dicts of text."""

    def __init__(self, request):
        self.request = request

    def rows(self, paths):
        for path in paths:
            yield from self._rows(path)

    def _rows(self, path):
        params = self.request.file_params
        content = Path(path).read_bytes()
        if params.encryption == sdk.AES:
            cipher = Cipher(AES256(self.request.keys[path]), CBC(content[:16])).decryptor()
            unpadder = PKCS7(128).unpadder()
            padded = cipher.update(content[16:]) + cipher.finalize()
            content = unpadder.update(padded) + unpadder.finalize()
        if params.compression == sdk.ZSTD:
            content = zstandard.ZstdDecompressor().decompressobj().decompress(content)
        elif params.compression == sdk.GZIP:
            content = gzip.decompress(content)
        if ".parquet" in path:
            yield from self._parquet(content)
            return
        for row in csv.DictReader(io.StringIO(content.decode(), newline="")):
            yield {name: None if v == params.null_string else v for name, v in row.items()}

    def _parquet(self, content):
        marker = self.request.file_params.unmodified_string
        for row in pq.read_table(io.BytesIO(content)).to_pylist():
            cells = {}
            for name, value in row.items():
                if value == marker.encode():
                    cells[name] = marker
                elif isinstance(value, bytes):
                    cells[name] = base64.b64encode(value).decode()
                elif isinstance(value, bool):
                    cells[name] = str(value).lower()
                else:
                    cells[name] = value if value is None else str(value)
            yield cells


def binary(cell):
    try:
        return base64.b64decode(cell, validate=True).hex()
    except binascii.Error:
        return cell.encode().hex()


class ReferenceDestination(Migrations, rpc.DestinationConnectorServicer):
    """The service.

    Args:
        unsupported: names of Migrate operations (and of sync modes) to answer `unsupported`.
        faults: names of the faults to switch on.
    """

    def __init__(self, *, unsupported=(), faults=()):
        self.db = duckdb.connect(":memory:")
        self.tables: dict[tuple[str, str], Stored] = {}
        self.unsupported, self.faults = set(unsupported), set(faults)
        self.requests = []
        self._lock = threading.Lock()

    # What a customer sees before a sync

    def ConfigurationForm(self, request, context):
        form = common.ConfigurationFormResponse(
            schema_selection_supported=True, table_selection_supported=True
        )
        form.fields.add(name="place", label="Place", required=True).text_field = common.PlainText
        if "field twice" in self.faults:
            form.fields.add(name="place", label="Place").text_field = common.PlainText
        form.tests.add(name="connection", label="Connection")
        return form

    def Test(self, request, context):
        if "no Test" in self.faults:
            return super(Migrations, self).Test(request, context)
        if "test fails" in self.faults:
            return common.TestResponse(failure="no such place")
        return common.TestResponse(success=True)

    def Capabilities(self, request, context):
        if "no Capabilities" in self.faults:
            return super(Migrations, self).Capabilities(request, context)
        wants = sdk.PARQUET if "parquet" in self.faults else sdk.CSV
        return sdk.CapabilitiesResponse(batch_file_format=wants)

    # Tables

    def DescribeTable(self, request, context):
        stored = self.tables.get((request.schema_name, request.table_name))
        if stored is None:
            return sdk.DescribeTableResponse(not_found=True)
        table = common.Table(name=request.table_name, columns=stored.columns.values())
        for column in table.columns:
            if "no keys" in self.faults:
                column.primary_key = False
            if "text only" in self.faults and column.type in {common.JSON, common.XML}:
                column.type = common.STRING
        return sdk.DescribeTableResponse(table=table)

    def CreateTable(self, request, context):
        return self._answer(sdk.CreateTableResponse, self._create, request, context)

    def _create(self, request):
        self._make(request.schema_name, request.table)

    def _make(self, schema, table):
        if (schema, table.name) in self.tables:
            raise Refused(f"the table {table.name} exists")
        columns = {column.name: settled(column) for column in table.columns}
        shape = ", ".join(f"{ident(n)} {sql_type(c)}" for n, c in columns.items())
        self.db.execute(f"CREATE SCHEMA IF NOT EXISTS {ident(schema)}")
        self.db.execute(f"CREATE TABLE {ident(schema)}.{ident(table.name)} ({shape})")
        self.tables[schema, table.name] = Stored(columns)

    def AlterTable(self, request, context):
        return self._answer(sdk.AlterTableResponse, self._alter, request, context)

    def _alter(self, request):
        where, stored = self._find(request.schema_name, request.table.name)
        wanted = {column.name: settled(column) for column in request.table.columns}
        for name, column in list(stored.columns.items()):
            if name in wanted:
                if sql_type(column) != sql_type(wanted[name]):
                    self.db.execute(
                        f"ALTER TABLE {where} ALTER {ident(name)} TYPE {sql_type(wanted[name])}"
                    )
                stored.columns[name] = wanted[name]
            elif request.drop_columns or "drops columns" in self.faults:
                self.db.execute(f"ALTER TABLE {where} DROP {ident(name)}")
                del stored.columns[name]
            else:
                column.primary_key = False
        for name, column in wanted.items():
            if name not in stored.columns:
                self._add(where, stored, column)
        keys = ", ".join(ident(c.name) for c in stored.columns.values() if c.primary_key)
        twice = f"SELECT 1 FROM {where} GROUP BY {keys} HAVING count(*) > 1"
        if keys and self.db.execute(twice).fetchall():
            raise Refused("rows would share a key")

    def Truncate(self, request, context):
        return self._answer(sdk.TruncateResponse, self._truncate, request, context)

    def _truncate(self, request):
        if (request.schema_name, request.table_name) not in self.tables:
            return
        where, _ = self._find(request.schema_name, request.table_name)
        before = request.utc_delete_before.ToMicroseconds()
        old = f"{ident(request.synced_column)} < make_timestamp({before})"
        if request.HasField("soft"):
            marker = ident(request.soft.deleted_column)
            self.db.execute(f"UPDATE {where} SET {marker} = true WHERE {old}")
        else:
            self.db.execute(f"DELETE FROM {where} WHERE {old}")

    # Rows

    def WriteBatch(self, request, context):
        return self._answer(sdk.WriteBatchResponse, self._write, request, context)

    def _write(self, request):
        where, stored = self._find(request.schema_name, request.table.name)
        unmodified, files = request.file_params.unmodified_string, Files(request)
        for row in files.rows(request.replace_files):
            self._row(where, stored, row, insert=True)
        for row in files.rows(request.update_files):
            given = {name: cell for name, cell in row.items() if cell != unmodified}
            self._row(where, stored, given, insert=False)
        for row in files.rows(request.delete_files):
            self.db.execute(f"DELETE FROM {where} WHERE {self._same_key(stored, row)}")

    def _row(self, where, stored, row, *, insert):
        same = self._same_key(stored, row)
        values = {name: self._literal(stored, name, cell) for name, cell in row.items()}
        changes = ", ".join(f"{ident(name)} = {value}" for name, value in values.items())
        changed = self.db.execute(f"UPDATE {where} SET {changes} WHERE {same}").fetchone()[0]
        if insert and not changed:
            names = ", ".join(map(ident, values))
            self.db.execute(f"INSERT INTO {where} ({names}) VALUES ({', '.join(values.values())})")

    def WriteHistoryBatch(self, request, context):
        return self._answer(sdk.WriteBatchResponse, self._write_history, request, context)

    def _write_history(self, request):
        where, stored = self._find(request.schema_name, request.table.name)
        unmodified, files = request.file_params.unmodified_string, Files(request)
        beginnings: dict[str, set[str]] = {}  # the starts of every key, as SQL
        versions: dict[tuple[str, str], tuple[bool, dict[str, str]]] = {}
        lists = (request.earliest_start_files, request.update_files, request.replace_files)
        for number, paths in enumerate(lists):
            for row in files.rows(paths):
                same, start = self._same_key(stored, row), self._literal(stored, START, row[START])
                beginnings.setdefault(same, set()).add(start)
                if number:
                    given = {n: c for n, c in row.items() if c != unmodified}
                    versions[same, start] = (number == 2, given)
        self.db.execute(f"CREATE OR REPLACE TEMP TABLE before AS FROM {where}")
        for same, starts in beginnings.items():
            earliest = f"least({', '.join(starts)})"
            self.db.execute(f"DELETE FROM {where} WHERE {same} AND {START} >= {earliest}")
            self.db.execute(
                f"UPDATE {where} SET {ACTIVE} = false, {END} = {earliest} - {MILLI} "
                f"WHERE {same} AND ({ACTIVE} OR {END} >= {earliest})"
            )
            mine = {start: version for (key, start), version in versions.items() if key == same}
            again = f"{START} IN ({', '.join(mine) or 'NULL'})"
            for start, (whole, row) in sorted(mine.items()):
                values = {name: self._literal(stored, name, cell) for name, cell in row.items()}
                bases = ["FROM (SELECT 1 AS one)"]
                if not whole:
                    removed = f"FROM before WHERE {same} AND {START} >= {earliest}"
                    bases = [
                        f"FROM {where} WHERE {same} AND {START} < {start} ORDER BY {START} DESC",
                        f"{removed} AND {START} = {start}",
                        f"{removed} AND {START} > {start} AND NOT {again} ORDER BY {START}",
                    ]
                rest = (lambda _: "NULL") if whole else ident
                cells = ", ".join(values.get(name, rest(name)) for name in stored.columns)
                for base in bases:
                    query = f"INSERT INTO {where} SELECT {cells} {base} LIMIT 1"
                    if self.db.execute(query).fetchone()[0]:
                        break
        self._delete_from_history(request, where, stored, beginnings)

    def _delete_from_history(self, request, where, stored, beginnings):
        files = Files(request)
        self.db.execute(f"CREATE OR REPLACE TEMP TABLE undeleted AS FROM {where}")
        for row in files.rows(request.delete_files):
            same, end = self._same_key(stored, row), self._literal(stored, END, row[END])
            current = f"SELECT max({START}) FROM {where} WHERE {same} AND {START} <= {end}"
            self.db.execute(
                f"UPDATE {where} SET {ACTIVE} = false, {END} = {end} "
                f"WHERE {same} AND {END} > {end} AND {START} = ({current})"
            )
        for row in files.rows(request.delete_files):
            same, end = self._same_key(stored, row), self._literal(stored, END, row[END])
            earliest = f"least({', '.join(beginnings.get(same, ['NULL']))})"
            was = f"SELECT {START} FROM before WHERE {same} AND {ACTIVE}"
            self.db.execute(
                f"UPDATE {where} SET {ACTIVE} = false, {END} = least({END}, {START}) "
                f"WHERE {same} AND {START} > {end} AND {START} IN ({was}) "
                f"AND ({START} < {earliest}) IS NOT FALSE AND NOT EXISTS (FROM undeleted "
                f"WHERE {same} AND {START} <= {end} AND {END} + {MILLI} > {end})"
            )

    # What they share

    def _add(self, where, stored, column):
        if column.name not in stored.columns:
            self.db.execute(f"ALTER TABLE {where} ADD {ident(column.name)} {sql_type(column)}")
            stored.columns[column.name] = column

    def _drop_columns(self, where, stored, names):
        for name in names:
            if stored.columns.pop(name, None) is not None:
                self.db.execute(f"ALTER TABLE {where} DROP {ident(name)}")

    def _find(self, schema, table):
        if (schema, table) not in self.tables:
            raise Refused(f"there is no table {table}")
        return f"{ident(schema)}.{ident(table)}", self.tables[schema, table]

    def _column(self, stored, name):
        if name not in stored.columns:
            raise Refused(f"there is no column {name}")
        return stored.columns[name]

    def _literal(self, stored, name, cell):
        if cell is None:
            return "NULL"
        column = stored.columns[name]
        if column.type == common.BINARY:
            return f"unhex({text(binary(cell))})"
        return f"CAST({text(cell)} AS {sql_type(column)})"

    def _same_key(self, stored, row):
        return " AND ".join(
            f"{ident(name)} = {self._literal(stored, name, row[name])}" for name in stored.key()
        )

    def _answer(self, response, work, request, context):
        """Do the work in one transaction; an error is returned as a task and changes nothing."""
        name = type(request).__name__.removesuffix("Request")
        self.requests.append(request)
        if f"{name} breaks" in self.faults:
            context.abort(grpc.StatusCode.INTERNAL, "out of order")
        if f"{name} is silent" in self.faults:
            return response()
        if f"{name} warns" in self.faults:
            return response(warning=common.Warning(message="mind the step"))
        if f"{name} says false" in self.faults:
            return response(success=False)
        with self._lock:
            before = {place: Stored(dict(t.columns)) for place, t in self.tables.items()}
            self.db.begin()
            try:
                work(request)
            except (Refused, duckdb.Error) as failure:
                self.db.rollback()
                self.tables = before
                return response(task=common.Task(message=str(failure)))
            self.db.commit()
        return response(success=True)

    def rows(self, schema, table):
        """Return the rows of a table as dicts, BLOBs as bytes, times as microseconds since 1970."""
        where, stored = self._find(schema, table)
        cells = []
        for column in stored.columns.values():
            name = ident(column.name)
            if sql_type(column) == "TIMESTAMP":
                cells.append(f"epoch_us({name}) AS {name}")
            elif sql_type(column) == "DATE":
                cells.append(f"date_diff('day', DATE '1970-01-01', {name}) AS {name}")
            else:
                cells.append(name)
        found = self.db.execute(f"SELECT {', '.join(cells)} FROM {where}")
        names = [entry[0] for entry in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


@contextmanager
def serve(destination, credentials=None, *, port=0):
    """Serve on a port of the loopback, over TLS with credentials; return `host:port`."""
    limit = 128 * 1024 * 1024
    server = grpc.server(
        ThreadPoolExecutor(max_workers=4),
        options=[
            ("grpc.max_send_message_length", limit),
            ("grpc.max_receive_message_length", limit),
        ],
    )
    rpc.add_DestinationConnectorServicer_to_server(destination, server)
    if credentials is None:
        port = server.add_insecure_port(f"localhost:{port}")
    else:
        port = server.add_secure_port(f"localhost:{port}", credentials)
    server.start()
    try:
        yield f"localhost:{port}"
    finally:
        server.stop(grace=None).wait()
