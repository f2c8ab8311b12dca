"""Who is told in a soak: a webhook's receiver that counts, and is slow, busy or rude now and then."""

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
"""How many notices are refused for now when they come first, and how many are taken without a word of thanks."""


@dataclass(slots=True)
class Told:
    """A notice, each time that it was taken."""

    kind: str
    task_id: str | None
    session_id: str | None
    repeats: list[bool] = field(default_factory=list[bool])
    """Of each time, whether it said that it may be a repetition."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A hub that was killed in the middle is what this is about."""


class CountingReceiver:
    """Takes notices. What it does to one depends on the seed and the notice alone."""

    def __init__(self, seed: int) -> None:
        self.told: dict[str, Told] = {}
        """By the id that a notice keeps when it is sent again."""
        self.problems: list[str] = []
        self.came = 0
        """How many requests there were, so that somebody can wait for the next."""
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
