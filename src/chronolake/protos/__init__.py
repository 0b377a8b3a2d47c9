"""The Partner SDK's protocol, version 2: two .proto files and what `make protos` makes of them.

`common_pb2` and `destination_sdk_pb2` hold the messages, `destination_sdk_pb2_grpc` the stub and
the servicer of `fivetran_sdk.v2.DestinationConnector`.
"""
