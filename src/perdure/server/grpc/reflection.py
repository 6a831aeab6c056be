"""Reflection: the list of services and their message types.

The protocol has two versions with equal messages and different names; clients try the newer one first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2

from perdure.server.grpc.calls import Calls, Context

VERSIONS = ("grpc.reflection.v1.ServerReflection", reflection.SERVICE_NAME)
METHOD = "ServerReflectionInfo"
FILE = reflection_pb2.DESCRIPTOR


class Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]
    """Lists the services to callers."""

    def __init__(self, calls: Calls, services: Iterable[str], pool: Any) -> None:
        super().__init__((*services, *VERSIONS), pool)
        self._calls = calls

    async def ServerReflectionInfo(  # noqa: N802 - the protocol's name
        self, request_iterator: AsyncIterator[Any], context: Context
    ) -> AsyncIterator[Any]:
        await self._calls.admit(context)
        async for answer in super().ServerReflectionInfo(request_iterator, context):
            yield answer

    def handlers(self) -> list[Any]:
        """Build the handlers of both versions."""
        method = grpc.stream_stream_rpc_method_handler(
            self.ServerReflectionInfo,
            reflection_pb2.ServerReflectionRequest.FromString,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        return [grpc.method_handlers_generic_handler(name, {METHOD: method}) for name in VERSIONS]


def build_pool(files: Iterable[Any]) -> Any:
    """Build a pool of these files and of all files that they import."""
    pool, added = descriptor_pool.DescriptorPool(), set()

    def add(file: Any) -> None:
        if file.name not in added:
            added.add(file.name)
            for dependency in file.dependencies:
                add(dependency)
            described = descriptor_pb2.FileDescriptorProto()
            file.CopyToProto(described)
            pool.Add(described)

    for file in files:
        add(file)
    return pool
