"""The protocol is exactly the vendor's: every name, number, type, label and group."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from chronolake.protos import common_pb2, destination_sdk_pb2

WIRE = Path(__file__).parents[3] / "shared" / "specs" / "partner-sdk-wire.json"
ROOT = Path(__file__).parents[2]
FILES = {"common.proto": common_pb2, "destination_sdk.proto": destination_sdk_pb2}
# Of `shown()`; the same test compares the content with the wire file where that exists.
FINGERPRINT = "f101f0ee68e0fa1c09a5046d8cae6859"

_TYPES = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in dir(FieldDescriptor)
    if name.startswith("TYPE_")
}


def shown() -> dict[str, object]:
    """Return the compiled descriptors in the form of the wire file."""
    result: dict[str, dict[str, object]] = {
        "messages": {},
        "enums": {},
        "services": {},
        "files": {},
    }
    for name, module in FILES.items():
        file = module.DESCRIPTOR
        for message in file.message_types_by_name.values():
            result["messages"][message.full_name] = [
                field_shown(message, field) for field in message.fields
            ]
        for enum in file.enum_types_by_name.values():
            result["enums"][enum.full_name] = {value.name: value.number for value in enum.values}
        for service in file.services_by_name.values():
            result["services"][service.full_name] = {
                method.name: [method.input_type.full_name, method.output_type.full_name]
                for method in service.methods
            }
        result["files"][name] = {
            "package": file.package,
            "messages": list(file.message_types_by_name),
            "enums": list(file.enum_types_by_name),
            "depends": sorted(
                dependency.name.removeprefix("chronolake/protos/")
                for dependency in file.dependencies
            ),
        }
    return result


def field_shown(message: Descriptor, field: FieldDescriptor) -> dict[str, object]:
    target = field.message_type or field.enum_type
    description: dict[str, object] = {"name": field.name, "number": field.number}
    if field.message_type and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[part] for part in ("key", "value"))
        description["type"] = f"map<{_TYPES[key.type]},{_TYPES[value.type]}>"
        return description
    description["type"] = target.full_name if target else _TYPES[field.type]
    if field.is_repeated:
        description["repeated"] = True
    group = field.containing_oneof
    if group is not None and group.name == f"_{field.name}":
        description["optional"] = True
    elif group is not None:
        description["oneof"] = group.name
    return description


def normal(wire: dict) -> dict:
    """Sort everything whose order has no meaning."""
    return {
        "messages": {
            name: sorted(fields, key=lambda field: field["number"])
            for name, fields in sorted(wire["messages"].items())
        },
        "enums": dict(sorted(wire["enums"].items())),
        "services": wire["services"],
        "files": {
            name: {
                "package": file["package"],
                "messages": sorted(file["messages"]),
                "enums": sorted(file["enums"]),
                "depends": sorted(file["depends"]),
            }
            for name, file in wire["files"].items()
        },
    }


def test_compiled_messages_are_the_wire_file_s_field_by_field() -> None:
    if not WIRE.exists():
        pytest.skip("the vendor's wire file is not there (../shared/specs)")
    expected, found = normal(json.loads(WIRE.read_text())), normal(shown())
    for name, fields in expected["messages"].items():
        assert found["messages"][name] == fields, name
    assert found == expected


def test_compiled_messages_keep_their_fingerprint() -> None:
    text = json.dumps(normal(shown()), sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:32] == FINGERPRINT


def test_every_method_is_one_request_and_one_response() -> None:
    service = destination_sdk_pb2.DESCRIPTOR.services_by_name["DestinationConnector"]
    assert not any(method.client_streaming or method.server_streaming for method in service.methods)


def test_generating_again_gives_the_committed_files(tmp_path: Path) -> None:
    committed = ROOT / "src" / "chronolake" / "protos"
    made_by = f"GRPC_GENERATED_VERSION = '{version('grpcio-tools')}'"
    if made_by not in (committed / "destination_sdk_pb2_grpc.py").read_text():
        pytest.skip("the committed files were made by another version of grpcio-tools")
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([str(ROOT / "scripts" / "protos"), str(tmp_path)], env=environment, check=True)
    made = tmp_path / "chronolake" / "protos"
    names = sorted(path.name for path in made.iterdir())
    assert names == sorted(path.name for path in committed.glob("*_pb2*"))
    for name in names:
        assert (made / name).read_text() == (committed / name).read_text(), name
