"""Stand-ins for the APIs of GitHub and GitLab on a Unix socket: for a real `gh`, and for a stand-in of `glab`."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import socketserver
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

REPOSITORY = re.compile(r"/repos/(acme/\w+)")


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class Forge:
    """Repositories of acme, with issues and pull requests. The block ends the server."""

    def __init__(self) -> None:
        self.issues: dict[int, dict[str, Any]] = {}
        self.pulls: list[dict[str, Any]] = []
        self.checks: list[dict[str, Any]] = []
        self.comments: list[dict[str, Any]] = []
        self.review_comments: list[dict[str, Any]] = []
        self.head: Callable[[], str] = lambda: "0" * 40
        self.said: list[tuple[str, str, Any]] = []
        """Requests that changed something: method, path, content."""
        self._folder = Path(tempfile.mkdtemp(prefix="forge-"))  # a socket's path has to be short

    def __enter__(self) -> Self:
        self._require()
        forge = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def address_string(self) -> str:
                return "local"

            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                content = self._content()
                given = json.loads(content) if content else None
                status, answer = forge.answer(self.command, urlsplit(self.path).path, given)
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _content(self) -> bytes:
                if self.headers.get("transfer-encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("content-length") or 0))
                content = b""
                while size := int(self.rfile.readline(), 16):
                    content += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return content

            def do_POST(self) -> None:
                self.do_GET()

            def do_PATCH(self) -> None:
                self.do_GET()

            def do_PUT(self) -> None:
                self.do_GET()

        self._server = _Server(str(self._folder / "socket"), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self._configure()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        shutil.rmtree(self._folder)

    def _require(self) -> None:
        if shutil.which("gh") is None:
            pytest.skip("There is no gh here.")

    def _configure(self) -> None:
        (self._folder / "config.yml").write_text(f"http_unix_socket: {self._folder / 'socket'}\n", encoding="utf-8")

    @property
    def env(self) -> dict[str, str]:
        """Variables with which `gh` asks here."""
        return {"GH_CONFIG_DIR": str(self._folder), "GH_TOKEN": "token-of-the-test"}

    def answer(self, method: str, path: str, given: Any) -> tuple[int, Any]:
        if method != "GET":
            self.said.append((method, path, given))
        if path == "/user":
            return 200, {"login": "me"}
        found = REPOSITORY.match(path)
        repository, inside = ("", path) if found is None else (found[1], path[found.end() :])
        pulls = [pull for pull in self.pulls if pull["repository"] == repository]
        match method, inside.strip("/").split("/"):
            case "GET", ["issues", number]:
                return 200, self.issues[int(number)]
            case "GET", ["issues", number, "comments"]:
                return 200, self.issues[int(number)]["said"] if int(number) in self.issues else self.comments
            case "GET", ["pulls"]:
                return 200, [pull for pull in pulls if pull["state"] == "open"]
            case "POST", ["pulls"]:
                number_and_url = {"number": 7, "html_url": f"https://github.com/{repository}/pull/7"}
                self.pulls.append({**given, **number_and_url, "repository": repository, "state": "open"})
                return 201, self.pulls[-1]
            case "PATCH", ["pulls", _]:
                pulls[-1] |= given
                return 200, pulls[-1]
            case "GET", ["pulls", _]:
                return 200, {**pulls[-1], "head": {"sha": self.head()}, "merged": False}
            case "GET", ["pulls", _, "comments"]:
                return 200, self.review_comments
            case "GET", ["pulls", _, "reviews"]:
                return 200, []
            case "GET", ["commits", _, "check-runs"]:
                return 200, {"check_runs": self.checks}
            case "POST", _ if re.search(r"/(comments|replies)$", inside):
                return 201, {"id": 99}
            case _:
                return 404, {"message": "Not Found"}


_GLAB = '''#!{python} -I
"""A stand-in for `glab api`, with the options that its manual page lists."""
import argparse, http.client, os, socket, sys

options = argparse.ArgumentParser(allow_abbrev=False)
options.add_argument("command", choices=["api"])
options.add_argument("endpoint")
for name in ("--hostname", "--method", "--header", "--input"):
    options.add_argument(name)
given = options.parse_args()
assert given.hostname == "gitlab.com" and os.environ["NO_PROMPT"] and os.environ["GITLAB_TOKEN"] == "token-of-the-test"
content = sys.stdin.buffer.read() if given.input == "-" else b""
# GitLab parses no content whose type is not named, and glab does not name it by itself.
headers = dict([given.header.split(": ", 1)]) if given.header else {{}}
assert not content or headers == {{"Content-Type": "application/json"}}
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect({socket!r})
connection.request(given.method, "/" + given.endpoint, content, headers)
answer = connection.getresponse()
text = answer.read()
sys.stdout.buffer.write(text)
if answer.status >= 400:
    sys.exit(f"glab: {{text.decode()}} (HTTP {{answer.status}})")
'''


class GitLabForge(Forge):
    """Project acme/tools/widgets, with its issues and merge requests, and a `glab` that asks here."""

    inside = "/projects/acme%2Ftools%2Fwidgets"

    def __init__(self) -> None:
        super().__init__()
        self.members: dict[str, int] = {}
        self.traces: dict[int, str] = {}

    def _require(self) -> None:
        """Its program comes with it."""

    def _configure(self) -> None:
        program = self._folder / "bin" / "glab"
        program.parent.mkdir()
        program.write_text(_GLAB.format(python=sys.executable, socket=str(self._folder / "socket")), encoding="utf-8")
        program.chmod(0o755)

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": f"{self._folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "GITLAB_TOKEN": "token-of-the-test"}

    def answer(self, method: str, path: str, given: Any) -> tuple[int, Any]:
        if method != "GET":
            self.said.append((method, path, given))
        if path == "/user":
            return 200, {"username": "me"}
        if not path.startswith(self.inside):
            return 404, {"message": "404 Project Not Found"}
        match method, path.removeprefix(self.inside).strip("/").split("/"):
            case "GET", ["issues", number]:
                return 200, self.issues[int(number)]
            case "GET", ["issues", number, "notes"]:
                return 200, self.issues[int(number)]["said"]
            case "GET", ["merge_requests"]:
                return 200, self.pulls
            case "POST", ["merge_requests"]:
                url = "https://gitlab.com/acme/tools/widgets/-/merge_requests/7"
                draft = given["title"].startswith("Draft: ")
                self.pulls.append({**given, "iid": 7, "web_url": url, "state": "opened", "draft": draft})
                return 201, self.pulls[-1]
            case "PUT", ["merge_requests", "7"]:
                self.pulls[-1] |= given
                return 200, self.pulls[-1]
            case "GET", ["merge_requests", "7"]:
                return 200, {**self.pulls[-1], "sha": self.head()}
            case "GET", ["merge_requests", "7", "discussions"]:
                return 200, self.comments
            case "GET", ["repository", "commits", _, "statuses"]:
                return 200, self.checks
            case "GET", ["jobs", number, "trace"] if int(number) in self.traces:
                return 200, self.traces[int(number)].encode()
            case "GET", ["members", "all"]:
                return 200, [{"username": name, "access_level": level} for name, level in self.members.items()]
            case "POST", ["merge_requests", "7", "discussions", _, "notes"]:
                return 201, {"id": 99}
            case _:
                return 404, {"message": "404 Not found"}
