"""The protobuf messages of memory's gRPC interface, built from `memory.binpb` at import.

They use their own descriptor pool, so that a program can also load the messages of agent-memory.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["FILE", "SERVICE", "message_class"]

SERVICE: Final = "memory.MemoryService"
_PACKAGE = "memory"

_FILES = descriptor_pb2.FileDescriptorSet.FromString(
    files("perdure.memory").joinpath("memory.binpb").read_bytes()
)
FILE: Final = _FILES.file[0]
"""The description of the interface."""
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(FILE)


def message_class(name: str) -> Any:
    """Return the class of a message of the interface."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


Event = message_class("Event")
IngestEventRequest = message_class("IngestEventRequest")
IngestEventResponse = message_class("IngestEventResponse")
IngestEventsRequest = message_class("IngestEventsRequest")
IngestEventsResponse = message_class("IngestEventsResponse")
GetEventsRequest = message_class("GetEventsRequest")
GetEventsResponse = message_class("GetEventsResponse")
Citation = message_class("Citation")
TocBullet = message_class("TocBullet")
TocNode = message_class("TocNode")
Grip = message_class("Grip")
GetTocRootRequest = message_class("GetTocRootRequest")
GetTocRootResponse = message_class("GetTocRootResponse")
GetNodeRequest = message_class("GetNodeRequest")
GetNodeResponse = message_class("GetNodeResponse")
BrowseTocRequest = message_class("BrowseTocRequest")
BrowseTocResponse = message_class("BrowseTocResponse")
ExpandGripRequest = message_class("ExpandGripRequest")
ExpandGripResponse = message_class("ExpandGripResponse")
SearchMatch = message_class("SearchMatch")
SearchNodeRequest = message_class("SearchNodeRequest")
SearchNodeResponse = message_class("SearchNodeResponse")
SearchChildrenRequest = message_class("SearchChildrenRequest")
SearchNodeResult = message_class("SearchNodeResult")
SearchChildrenResponse = message_class("SearchChildrenResponse")
TeleportSearchRequest = message_class("TeleportSearchRequest")
TeleportSearchResult = message_class("TeleportSearchResult")
TeleportSearchResponse = message_class("TeleportSearchResponse")
TimeRange = message_class("TimeRange")
VectorTeleportRequest = message_class("VectorTeleportRequest")
VectorMatch = message_class("VectorMatch")
VectorTeleportResponse = message_class("VectorTeleportResponse")
HybridSearchRequest = message_class("HybridSearchRequest")
HybridSearchResponse = message_class("HybridSearchResponse")
GetVectorIndexStatusRequest = message_class("GetVectorIndexStatusRequest")
VectorIndexStatus = message_class("VectorIndexStatus")
JobStatusProto = message_class("JobStatusProto")
GetSchedulerStatusRequest = message_class("GetSchedulerStatusRequest")
GetSchedulerStatusResponse = message_class("GetSchedulerStatusResponse")
PauseJobRequest = message_class("PauseJobRequest")
PauseJobResponse = message_class("PauseJobResponse")
ResumeJobRequest = message_class("ResumeJobRequest")
ResumeJobResponse = message_class("ResumeJobResponse")
