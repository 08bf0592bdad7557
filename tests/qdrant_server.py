"""A Qdrant server small enough for tests: qdrant-client's ``:memory:`` mode behind the gRPC stubs that it ships.

It knows the calls that `QdrantIndex` makes and no others, and does what a real server is documented to do where the
memory mode is laxer: float16 is rounded, and a message above `most_bytes` is refused. It has no log, no graph and
no optimiser.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from qdrant_client import QdrantClient, models
from qdrant_client import grpc as messages
from qdrant_client.conversions.conversion import GrpcToRest, RestToGrpc, grpc_to_payload
from qdrant_client.grpc.collections_service_pb2_grpc import add_CollectionsServicer_to_server
from qdrant_client.grpc.points_service_pb2_grpc import add_PointsServicer_to_server

from pipeline.stores.qdrant_options import QdrantOptions

SERVER_LIMIT = 32 * 1024**2
"""Qdrant's default for one request."""

ANY = "any call"


class Fault(enum.Enum):
    UNAVAILABLE = "nothing is done"
    LOST_REPLY = "the work is done, then the connection breaks"
    SLOW = "the work is done after `delay_s`"
    QUEUED = "the work is done, and said to be only acknowledged"
    INTERNAL = "what HTTP calls 500"
    LOST_RACE = "somebody else does it first, so that it is refused"


class QdrantServer:
    """Listens on a free port of localhost until `stop`.

    `calls`: name and bytes of every request, in order; `last`: the newest request of a name.
    """

    def __init__(
        self,
        *,
        most_bytes: int = SERVER_LIMIT,
        delay_s: float = 1.5,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self.client = QdrantClient(":memory:", force_disable_check_same_thread=True)
        self.calls: list[tuple[str, int]] = []
        self.last: dict[str, Any] = {}
        self.headers: dict[str, str] = {}
        self.delay_s = delay_s
        self._lock = threading.Lock()
        self._faults: dict[str, list[Fault]] = defaultdict(list)
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", most_bytes)])
        add_CollectionsServicer_to_server(_Collections(self), self._server)
        add_PointsServicer_to_server(_Points(self), self._server)
        place = "localhost:0" if credentials else "127.0.0.1:0"
        self.port = (
            self._server.add_secure_port(place, credentials) if credentials else self._server.add_insecure_port(place)
        )
        self._server.start()

    def options(self, **others: Any) -> QdrantOptions:
        return QdrantOptions(url="http://127.0.0.1", grpc_port=self.port, **others)

    def fails(self, call: str, fault: Fault, times: int = 1) -> None:
        """The next `times` calls of that name fail so."""
        self._faults[call] += [fault] * times

    def bytes_of(self, call: str) -> list[int]:
        return [size for name, size in self.calls if name == call]

    def stop(self) -> None:
        self._server.stop(grace=None).wait()

    def answer(self, call: str, request: Any, context: grpc.ServicerContext, work: Callable[[], Any]) -> Any:
        self.calls.append((call, request.ByteSize()))
        self.last[call] = request
        self.headers = dict(context.invocation_metadata())
        fault = self._next_fault(call)
        if fault is Fault.UNAVAILABLE:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not ready")
        if fault is Fault.INTERNAL:
            context.abort(grpc.StatusCode.INTERNAL, "service internal error")
        if fault is Fault.SLOW:
            time.sleep(self.delay_s)
        reply = self._carry_out(context, work)
        if fault is Fault.LOST_REPLY:
            context.abort(grpc.StatusCode.UNAVAILABLE, "socket closed")
        if fault is Fault.QUEUED:
            reply.result.status = messages.UpdateStatus.Acknowledged
        return self._carry_out(context, work) if fault is Fault.LOST_RACE else reply

    def _carry_out(self, context: grpc.ServicerContext, work: Callable[[], Any]) -> Any:
        """The memory mode says everything with a `ValueError` or a `KeyError`."""
        try:
            with self._lock:
                return work()
        except (ValueError, KeyError) as error:
            absent = "not found" in str(error)
            code = grpc.StatusCode.NOT_FOUND if absent else grpc.StatusCode.INVALID_ARGUMENT
            return context.abort(code, str(error))

    def _next_fault(self, call: str) -> Fault | None:
        waiting = self._faults[call] or self._faults[ANY]
        return waiting.pop(0) if waiting else None


def _call(work: Callable[[QdrantClient, Any], Any]) -> Any:
    """A method of a servicer; `work` gets the client and the request."""
    name = work.__name__

    def method(self: Any, request: Any, context: grpc.ServicerContext) -> Any:
        return self.server.answer(name, request, context, lambda: work(self.server.client, request))

    return method


class _Collections(messages.CollectionsServicer):
    def __init__(self, server: QdrantServer) -> None:
        self.server = server

    @_call
    def CollectionExists(client: QdrantClient, request: Any) -> Any:
        exists = client.collection_exists(request.collection_name)
        return messages.CollectionExistsResponse(result=messages.CollectionExists(exists=exists))

    @_call
    def Create(client: QdrantClient, request: Any) -> Any:
        done = client.create_collection(
            request.collection_name,
            vectors_config=GrpcToRest.convert_vectors_config(request.vectors_config),
            sparse_vectors_config=GrpcToRest.convert_sparse_vector_config(request.sparse_vectors_config),
        )
        return messages.CollectionOperationResponse(result=done)

    @_call
    def Get(client: QdrantClient, request: Any) -> Any:
        found = client.get_collection(request.collection_name)
        return messages.GetCollectionInfoResponse(result=RestToGrpc.convert_collection_info(found))


class _Points(messages.PointsServicer):
    def __init__(self, server: QdrantServer) -> None:
        self.server = server

    @_call
    def CreateFieldIndex(client: QdrantClient, request: Any) -> Any:
        client.get_collection(request.collection_name)
        return _done()

    @_call
    def Upsert(client: QdrantClient, request: Any) -> Any:
        points = [_as_stored(GrpcToRest.convert_point_struct(point)) for point in request.points]
        client.upsert(request.collection_name, points)
        return _done()

    @_call
    def Delete(client: QdrantClient, request: Any) -> Any:
        client.delete(request.collection_name, GrpcToRest.convert_points_selector(request.points))
        return _done()

    @_call
    def SetPayload(client: QdrantClient, request: Any) -> Any:
        payload = grpc_to_payload(request.payload)
        among = GrpcToRest.convert_points_selector(request.points_selector)
        client.set_payload(request.collection_name, payload, among)
        return _done()

    @_call
    def Get(client: QdrantClient, request: Any) -> Any:
        records = client.retrieve(
            request.collection_name,
            [GrpcToRest.convert_point_id(id) for id in request.ids],
            with_payload=GrpcToRest.convert_with_payload_interface(request.with_payload),
            with_vectors=GrpcToRest.convert_with_vectors_selector(request.with_vectors),
        )
        return messages.GetResponse(result=[RestToGrpc.convert_record(record) for record in records])

    @_call
    def Scroll(client: QdrantClient, request: Any) -> Any:
        records, following = client.scroll(
            request.collection_name,
            limit=request.limit,
            offset=GrpcToRest.convert_point_id(request.offset) if request.HasField("offset") else None,
            with_payload=False,
        )
        return messages.ScrollResponse(
            result=[messages.RetrievedPoint(id=RestToGrpc.convert_extended_point_id(record.id)) for record in records],
            next_page_offset=None if following is None else RestToGrpc.convert_extended_point_id(following),
        )

    @_call
    def QueryBatch(client: QdrantClient, request: Any) -> Any:
        asked = [GrpcToRest.convert_query_points(query) for query in request.query_points]
        answers = client.query_batch_points(request.collection_name, asked)
        rankings = [[RestToGrpc.convert_scored_point(point) for point in answer.points] for answer in answers]
        return messages.QueryBatchResponse(result=[messages.BatchResult(result=ranking) for ranking in rankings])


def _done() -> Any:
    result = messages.UpdateResult(operation_id=1, status=messages.UpdateStatus.Completed)
    return messages.PointsOperationResponse(result=result)


def _as_stored(point: models.PointStruct) -> models.PointStruct:
    """Multivectors in float16, as their collections ask for; the memory mode keeps float32."""
    vectors: Any = point.vector
    rounded = {
        name: np.array(vector, dtype=np.float16).astype(np.float32).tolist() if isinstance(vector, list) else vector
        for name, vector in vectors.items()
    }
    return models.PointStruct(id=point.id, vector=rounded, payload=point.payload)
