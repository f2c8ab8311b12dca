"""Webhook receiver of a soak. It counts, and is occasionally slow, busy or rude."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any, Final, Self

SECRET: Final = "of the soak"
_LONGEST_PAUSE: Final = 0.4
_BUSY, _RUDE = 0.1, 0.1
"""Share of first notifications that are refused temporarily, and share that is accepted without an answer."""


@dataclass(slots=True)
class Told:
    """Notification, with each time it was accepted."""

    kind: str
    task_id: str | None
    session_id: str | None
    repeats: list[bool] = field(default_factory=list[bool])
    """For each time, whether it was marked as a possible repetition."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error: hubs are killed during requests."""


class CountingReceiver:
    """Receiver of notifications. Its behaviour depends only on the seed and the notification."""

    def __init__(self, seed: int) -> None:
        self.told: dict[str, Told] = {}
        """Notifications by id, which a repetition keeps."""
        self.problems: list[str] = []
        self.came = 0
        """Number of requests, so that a test can wait for the next one."""
        self._seed = seed
        self._seen: set[str] = set()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                with suppress(OSError):
                    owner.take(self, body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/notices"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        """Count it, or say that it is to come again."""
        notice_id, at = handler.headers["Webhook-Id"], handler.headers["Webhook-Timestamp"]
        signed = hmac.new(SECRET.encode(), f"{notice_id}.{at}.".encode() + body, hashlib.sha256).digest()
        if handler.headers["Webhook-Signature"] != f"v1,{b64encode(signed).decode()}":
            self.problems.append(f"Notice {notice_id} has a signature that is none.")
        random, is_first = Random(f"{self._seed} {notice_id}"), notice_id not in self._seen
        chance, pause = random.random(), random.uniform(0, _LONGEST_PAUSE)
        self._seen.add(notice_id)
        self.came += 1
        if is_first and chance < _BUSY:
            _answer(handler, 503)
            return
        content = json.loads(body)
        told = self.told.setdefault(notice_id, Told(content["kind"], content.get("taskId"), content.get("sessionId")))
        told.repeats.append(content["mayBeRepeated"])
        time.sleep(pause)
        if is_first and chance < _BUSY + _RUDE:
            handler.close_connection = True
            handler.connection.close()
        else:
            _answer(handler, 200)


def _answer(handler: BaseHTTPRequestHandler, status: int) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", "0")
    handler.end_headers()
