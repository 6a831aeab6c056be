"""Stubs of agent-memory's clients, built only from the field numbers of its public interface.

A field is its name, its number, and its type: a scalar, an enum (`#`), a message, or a map of strings; `*` is
repeated, `?` optional.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Field = descriptor_pb2.FieldDescriptorProto

SCALARS = {
    "string": Field.TYPE_STRING,
    "int64": Field.TYPE_INT64,
    "int32": Field.TYPE_INT32,
    "uint64": Field.TYPE_UINT64,
    "uint32": Field.TYPE_UINT32,
    "bool": Field.TYPE_BOOL,
    "float": Field.TYPE_FLOAT,
    # An enum has the wire format of its number.
    "#": Field.TYPE_INT32,
}
MESSAGES = {
    "Event": "event_id=1:string session_id=2:string timestamp_ms=3:int64 event_type=4:# role=5:# "
    "text=6:string metadata=7:map agent=8:?string",
    "IngestEventRequest": "event=1:Event",
    "IngestEventResponse": "event_id=1:string created=2:bool deduplicated=3:bool",
    "TocBullet": "text=1:string grip_ids=2:*string",
    "TocNode": "node_id=1:string level=2:# title=3:string summary=4:?string bullets=5:*TocBullet "
    "keywords=6:*string child_node_ids=7:*string start_time_ms=8:int64 end_time_ms=9:int64 version=10:int32 "
    "salience_score=101:float memory_kind=102:# is_pinned=103:bool access_count=201:uint32 "
    "last_accessed_ms=202:int64",
    "Grip": "grip_id=1:string excerpt=2:string event_id_start=3:string event_id_end=4:string "
    "timestamp_ms=5:int64 source=6:string salience_score=11:float memory_kind=12:# is_pinned=13:bool",
    "GetTocRootRequest": "",
    "GetTocRootResponse": "nodes=1:*TocNode",
    "GetNodeRequest": "node_id=1:string",
    "GetNodeResponse": "node=1:?TocNode",
    "BrowseTocRequest": "parent_id=1:string limit=2:int32 continuation_token=3:?string",
    "BrowseTocResponse": "children=1:*TocNode continuation_token=2:?string has_more=3:bool",
    "GetEventsRequest": "from_timestamp_ms=1:int64 to_timestamp_ms=2:int64 limit=3:int32",
    "GetEventsResponse": "events=1:*Event has_more=2:bool",
    "ExpandGripRequest": "grip_id=1:string events_before=2:?int32 events_after=3:?int32",
    "ExpandGripResponse": "grip=1:?Grip events_before=2:*Event excerpt_events=3:*Event events_after=4:*Event",
    "JobStatusProto": "job_name=1:string cron_expr=2:string last_run_ms=3:int64 last_duration_ms=4:int64 "
    "last_result=5:# last_error=6:?string next_run_ms=7:int64 run_count=8:uint64 error_count=9:uint64 "
    "is_running=10:bool is_paused=11:bool last_run_metadata=12:map",
    "GetSchedulerStatusRequest": "",
    "GetSchedulerStatusResponse": "scheduler_running=1:bool jobs=2:*JobStatusProto",
    "PauseJobRequest": "job_name=1:string",
    "PauseJobResponse": "success=1:bool error=2:?string",
    "ResumeJobRequest": "job_name=1:string",
    "ResumeJobResponse": "success=1:bool error=2:?string",
    "SearchNodeRequest": "node_id=1:string query=2:string fields=3:*# limit=4:int32 token_budget=5:int32",
    "SearchMatch": "field=1:# text=2:string grip_ids=3:*string score=4:float",
    "SearchNodeResponse": "matched=1:bool matches=2:*SearchMatch node_id=3:string level=4:#",
    "SearchChildrenRequest": "parent_id=1:string query=2:string child_level=3:# fields=4:*# limit=5:int32 "
    "token_budget=6:int32",
    "SearchNodeResult": "node_id=1:string title=2:string level=3:# matches=4:*SearchMatch "
    "relevance_score=5:float",
    "SearchChildrenResponse": "results=1:*SearchNodeResult has_more=2:bool",
    "TeleportSearchRequest": "query=1:string doc_type=2:# limit=3:int32 agent_filter=4:?string",
    "TeleportSearchResult": "doc_id=1:string doc_type=2:# score=3:float keywords=4:?string "
    "timestamp_ms=5:?int64 agent=6:?string",
    "TeleportSearchResponse": "results=1:*TeleportSearchResult total_docs=2:uint64",
    "TimeRange": "start_ms=1:int64 end_ms=2:int64",
    "VectorTeleportRequest": "query=1:string top_k=2:int32 min_score=3:float time_filter=4:?TimeRange "
    "target=5:# agent_filter=6:?string",
    "VectorMatch": "doc_id=1:string doc_type=2:string score=3:float text_preview=4:string "
    "timestamp_ms=5:int64 agent=6:?string",
    "VectorTeleportResponse": "matches=1:*VectorMatch index_status=2:?VectorIndexStatus",
    "HybridSearchRequest": "query=1:string top_k=2:int32 mode=3:# bm25_weight=4:float vector_weight=5:float "
    "time_filter=6:?TimeRange target=7:# agent_filter=8:?string",
    "HybridSearchResponse": "matches=1:*VectorMatch mode_used=2:# bm25_available=3:bool "
    "vector_available=4:bool",
    "GetVectorIndexStatusRequest": "",
    "VectorIndexStatus": "available=1:bool vector_count=2:int64 dimension=3:int32 last_indexed=4:string "
    "index_path=5:string size_bytes=6:int64",
}
METHODS = (
    *("IngestEvent", "GetTocRoot", "GetNode", "BrowseToc", "GetEvents", "ExpandGrip", "GetSchedulerStatus"),
    *("PauseJob", "ResumeJob", "SearchNode", "SearchChildren", "TeleportSearch", "VectorTeleport"),
    "HybridSearch",
)
"""Each takes NAMERequest and answers with NAMEResponse."""
BEYOND = (
    *("GetTopicGraphStatus", "GetTopicsByQuery", "GetRelatedTopics", "GetTopTopics", "PruneVectorIndex"),
    *("PruneBm25Index", "GetRankingStatus", "GetRetrievalCapabilities", "ClassifyQueryIntent", "RouteQuery"),
    *("ListAgents", "GetAgentActivity", "GetDedupStatus", "StartEpisode", "RecordAction"),
    *("CompleteEpisode", "GetSimilarEpisodes"),
)
"""Methods that the server does not have."""


def _field(message: Any, text: str) -> None:
    name, _, rest = text.partition("=")
    number, _, kind = rest.partition(":")
    field = message.field.add(name=name, number=int(number), label=Field.LABEL_OPTIONAL)
    if kind.startswith("*"):
        field.label, kind = Field.LABEL_REPEATED, kind[1:]
    elif kind.startswith("?"):
        kind = kind[1:]
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name="_" + name)
    if kind == "map":
        entry = "".join(part.title() for part in name.split("_")) + "Entry"
        nested = message.nested_type.add(name=entry)
        nested.options.map_entry = True
        _field(nested, "key=1:string")
        _field(nested, "value=2:string")
        field.label, kind = Field.LABEL_REPEATED, f"{message.name}.{entry}"
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type, field.type_name = Field.TYPE_MESSAGE, f".memory.{kind}"


def _pool() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="original.proto", package="memory", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields.split():
            _field(message, field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


_POOL = _pool()


def kind(name: str) -> Any:
    """Return a message class, as an original client has it."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"memory.{name}"))


class Stub:
    """A client of agent-memory: its methods have the names of the interface."""

    def __init__(self, channel: Any, **metadata: str) -> None:
        self._channel = channel
        self._metadata = [(name.replace("_", "-"), value) for name, value in metadata.items()]

    async def call(self, method: str, **fields: Any) -> Any:
        answer = "VectorIndexStatus" if method == "GetVectorIndexStatus" else f"{method}Response"
        invoke = self._channel.unary_unary(
            f"/memory.MemoryService/{method}",
            request_serializer=kind(f"{method}Request").SerializeToString,
            response_deserializer=kind(answer).FromString,
        )
        request = kind(f"{method}Request")(**fields)
        return await invoke(request, metadata=self._metadata, timeout=20)
