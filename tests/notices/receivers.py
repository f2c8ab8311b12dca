"""Who is told in tests: a webhook's receiver and an ntfy server, both real HTTP servers on loopback."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import anyio

SECONDS = 20


@dataclass
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.body)
        return content


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone is nothing to be told of."""


class Receiver:
    """Takes whatever is posted. `answers` are the status codes it gives first; then it is content."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.answers: list[int] = []
        self.before_answer: Callable[[Received], None] = lambda _: None
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                request = Received(self.path, {k.lower(): v for k, v in self.headers.items()}, self.rfile.read(size))
                owner.take(self, request)

            def do_GET(self) -> None:
                owner.show(self, Received(self.path, {k.lower(): v for k, v in self.headers.items()}, b""))

            def log_message(self, *_: Any) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, handler: BaseHTTPRequestHandler, request: Received) -> None:
        self.received.append(request)
        self.before_answer(request)
        answer(handler, self.answers.pop(0) if self.answers else 200)

    def show(self, handler: BaseHTTPRequestHandler, _request: Received) -> None:
        answer(handler, 404)

    async def until(self, number: int) -> list[Received]:
        """What was received, once it is so much."""
        with anyio.fail_after(SECONDS):
            while len(self.received) < number:
                await anyio.sleep(0.01)
        return list(self.received)


def answer(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"{}") -> None:
    with suppress(OSError):
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        if 300 <= status < 400:
            handler.send_header("Location", "/elsewhere")
        handler.end_headers()
        handler.wfile.write(body)


@dataclass
class _Topic:
    messages: list[tuple[float, dict[str, Any]]] = field(default_factory=list)


class NtfyServer(Receiver):
    """As much of an ntfy server as is used: publish, who may read a topic, and the stream of one."""

    def __init__(self, token: str = "tk_reader", *, is_protected: bool = True) -> None:
        super().__init__()
        self.token = token
        self.is_protected = is_protected
        self.topics: dict[str, _Topic] = {}
        self.readers = 0
        self._changed = threading.Condition()
        self._cut = 0

    @property
    def published(self) -> list[dict[str, Any]]:
        """What was published as JSON, oldest first."""
        return [request.json for request in self.received if request.path == "/"]

    def cut(self) -> None:
        """End the streams that are open."""
        with self._changed:
            self._cut += 1
            self._changed.notify_all()

    def take(self, handler: BaseHTTPRequestHandler, request: Received) -> None:
        self.received.append(request)
        if request.path == "/":
            known = request.headers.get("authorization") == f"Bearer {self.token}"
            status = self.answers.pop(0) if self.answers else 200 if known or not self.is_protected else 403
            answer(handler, status)
            return
        self.publish(request.path[1:], request.body.decode())
        answer(handler, 200)

    def publish(self, topic: str, text: str) -> None:
        with self._changed:
            known = self.topics.setdefault(topic, _Topic()).messages
            message = {"id": f"m{len(known)}", "event": "message", "topic": topic, "message": text}
            known.append((time.time(), message))
            self._changed.notify_all()

    def show(self, handler: BaseHTTPRequestHandler, request: Received) -> None:
        parts = urlsplit(request.path)
        topic, _, what = parts.path[1:].partition("/")
        known = request.headers.get("authorization") == f"Bearer {self.token}"
        if self.is_protected and not known:
            answer(handler, 403)
        elif what == "auth":
            answer(handler, 200)
        elif what == "json":
            self._stream(handler, topic, parse_qs(parts.query).get("since", ["0"])[0])
        else:
            answer(handler, 404)

    def _stream(self, handler: BaseHTTPRequestHandler, topic: str, since: str) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        self.readers += 1
        cut = self._cut
        said, begun = 0, time.time()
        try:
            handler.wfile.write(b'{"event":"open"}\n')
            with self._changed:
                while cut == self._cut:
                    known = self.topics.setdefault(topic, _Topic()).messages
                    for number, (at, message) in enumerate(known):
                        wanted = number > int(since[1:]) if since.startswith("m") else at >= begun - int(since[:-1])
                        if number >= said and wanted:
                            handler.wfile.write(json.dumps(message).encode() + b"\n")
                    said = len(known)
                    handler.wfile.flush()
                    self._changed.wait(0.5)
                    handler.wfile.write(b'{"event":"keepalive"}\n')
        except OSError:
            pass
        finally:
            self.readers -= 1

    async def until_published(self, number: int) -> list[dict[str, Any]]:
        with anyio.fail_after(SECONDS):
            while len(self.published) < number:
                await anyio.sleep(0.01)
        return self.published

    async def until_read(self, readers: int = 1) -> None:
        with anyio.fail_after(SECONDS):
            while self.readers != readers:
                await anyio.sleep(0.01)


async def press(action: dict[str, Any]) -> None:
    """Press a button, as the phone does it."""
    request = urllib.request.Request(
        action["url"], action["body"].encode(), action.get("headers", {}), method=action["method"]
    )
    await anyio.to_thread.run_sync(lambda: urllib.request.urlopen(request, timeout=SECONDS).close())
