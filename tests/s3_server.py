"""S3 servers for tests: moto in this process behind a layer that can fail, and the one that scripts/services starts."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import threading
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Literal

from pipeline.stores.s3_options import S3Options
from tests.conftest import service_url, unavailable

SECRET = "secret-that-nobody-may-see"
Kind = Literal["slow_down", "reset", "lost_reply", "cut_body"]
SLOW_DOWN = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>injected</Message></Error>'


@dataclasses.dataclass
class Fault:
    """The next `times` requests of `method` whose address contains `part` fail."""

    method: str
    part: str
    kind: Kind
    times: int


class FaultyServer:
    """A WSGI application before another one: notes each request and its checksum, and lets some fail."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._lock = threading.Lock()
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.checksums: list[str] = []

    def fail(self, method: str, part: str, kind: Kind, times: int = 1) -> None:
        self.faults.append(Fault(method, part, kind, times))

    def seen(self, method: str, part: str) -> int:
        """How many requests there were."""
        return sum(found == method and part in address for found, address in self.requests)

    def reset(self) -> None:
        self.faults.clear()
        self.requests.clear()
        self.checksums.clear()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        match self._kind(environ):
            case "slow_down":
                return _refuse(environ, start_response)
            case "reset":
                _hang_up(environ)
            case "lost_reply":  # the work is done, the answer does not arrive
                list(self._application(environ, lambda *_, **__: None))
                _hang_up(environ)
            case "cut_body":
                answer = b"".join(self._application(environ, start_response))
                return _cut(environ, answer)
        return self._application(environ, start_response)

    def _kind(self, environ: dict[str, Any]) -> Kind | None:
        method, address = environ["REQUEST_METHOD"], f"{environ['PATH_INFO']}?{environ.get('QUERY_STRING', '')}"
        with self._lock:
            self.requests.append((method, address))
            self.checksums += [environ[name] for name in environ if name.startswith("HTTP_X_AMZ_CHECKSUM_SHA")]
            for fault in self.faults:
                if fault.times and fault.method == method and fault.part in address:
                    fault.times -= 1
                    return fault.kind
        return None


def _refuse(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start_response("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", str(len(SLOW_DOWN)))])
    return [SLOW_DOWN]


def _hang_up(environ: dict[str, Any]) -> None:
    environ["werkzeug.socket"].shutdown(2)
    raise ConnectionAbortedError


def _cut(environ: dict[str, Any], answer: bytes) -> Iterable[bytes]:
    yield answer[: len(answer) // 2]
    _hang_up(environ)


@functools.cache
def _start() -> tuple[FaultyServer, str]:
    """The server and its address; its thread ends with the process."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Silent(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: Any) -> None: ...

    application = FaultyServer(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Silent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return application, f"http://127.0.0.1:{server.server_port}"


@dataclasses.dataclass(frozen=True)
class Bucket:
    """A fresh bucket, the server that holds it, and a client that knows nothing of our store."""

    server: FaultyServer
    options: S3Options
    raw: Any

    @property
    def name(self) -> str:
        return self.options.bucket

    def uploads(self) -> int:
        """Uploads by parts that are neither completed nor aborted."""
        return len(self.raw.list_multipart_uploads(Bucket=self.name).get("Uploads", ()))


def fresh_bucket(**options: Any) -> Bucket:
    """Skips where moto is absent, and fails instead where PAGEGATE_TEST_REQUIRE_SERVICES=1."""
    if importlib.util.find_spec("moto") is None:
        unavailable("moto is not installed: pip install 'moto[server]'")
    server, endpoint = _start()
    server.reset()
    found, raw = _make_bucket(endpoint, "somebody", SECRET, options)
    return Bucket(server, found, raw)


def service_bucket(**options: Any) -> S3Options:
    """A fresh bucket on the server of PAGEGATE_TEST_S3_URL, left there.

    Skips without a server, and fails instead where PAGEGATE_TEST_REQUIRE_SERVICES=1.
    """
    endpoint = service_url("PAGEGATE_TEST_S3_URL")
    key_id = os.environ.get("PAGEGATE_TEST_S3_ACCESS_KEY_ID", "somebody")  # moto takes any
    secret = os.environ.get("PAGEGATE_TEST_S3_SECRET_ACCESS_KEY", SECRET)
    found, _ = _make_bucket(endpoint, key_id, secret, options)
    return found


def _make_bucket(endpoint: str, key_id: str, secret: str, options: dict[str, Any]) -> tuple[S3Options, Any]:
    keys = {"access_key_id": key_id, "secret_access_key": secret}
    address = {"bucket": f"bucket-{uuid.uuid4().hex}", "endpoint_url": endpoint, "region": "us-east-1"}
    found = S3Options.model_validate({**address, **keys, "addressing_style": "path", **options})
    raw = _raw_client(endpoint, key_id, secret)
    raw.create_bucket(Bucket=found.bucket)
    return found, raw


@functools.cache
def _raw_client(endpoint: str, key_id: str, secret: str) -> Any:
    import boto3

    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
    )
