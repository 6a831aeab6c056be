"""The client of memory over gRPC, part of the extra `grpc`."""

from perdure.client.grpc.memory import GrpcMemory as GrpcMemory

__all__ = ["GrpcMemory"]
