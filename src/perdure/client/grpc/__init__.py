"""The client of memory over gRPC: what the extra `grpc` adds."""

from perdure.client.grpc.memory import GrpcMemory as GrpcMemory

__all__ = ["GrpcMemory"]
