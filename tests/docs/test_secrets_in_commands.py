"""Tests that no command in the documentation or help contains a secret: everyone can read command lines."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest

from helmsman.cli.app import app
from tests.docs.pages import ROOT, blocks, read

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
INLINE = re.compile(r"`([^`\n]+)`")
PRINTED_BY_THE_SHELL = re.compile(r"""<\(printf [^()]*"\$\(cat [^()]*\)"\)""")
"""A builtin that writes into a pipe: no program gets it as an argument."""
SET_BY_THE_SHELL = re.compile(r"^\s*(?:export )?[A-Z_]+=\S.*$")
SECRET = re.compile(
    r"\bBearer\b|http-token|TOKEN|\$\(cat\b|(?:^|\s)(?:--header|--token|--password)\b|\s-u\s", re.IGNORECASE
)
PROGRAM = re.compile(r"^\s*(?:\$ )?(?:claude|codex|curl|wget|http|code|helmsman|npx|ssh|docker|git|python3?)\s")


def shell_lines(page: Path) -> Iterator[str]:
    for block in blocks(page, "sh", "bash", "console"):
        yield from block.replace("\\\n", " ").splitlines()
    yield from (code for code in INLINE.findall(read(page)) if PROGRAM.match(code))


def secrets_in(line: str) -> str | None:
    if SET_BY_THE_SHELL.match(line):
        return None
    found = SECRET.search(PRINTED_BY_THE_SHELL.sub("", line))
    return found[0] if found else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_documented_command_has_a_secret_in_it(page: Path) -> None:
    assert [line for line in shell_lines(page) if secrets_in(line)] == []


def test_a_secret_would_be_found() -> None:
    for line in (
        'claude mcp add --transport http helmsman http://x --header "Authorization: Bearer $(cat ~/t/http-token)"',
        'curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8765/api/overview',
        "curl -u me:secret http://127.0.0.1",
    ):
        assert secrets_in(line), line


def commands(group: click.Command) -> Iterator[click.Command]:
    yield group
    if isinstance(group, click.Group):
        with click.Context(group) as context:
            for name in group.list_commands(context):
                command = group.get_command(context, name)
                assert command is not None
                yield from commands(command)


def test_no_command_takes_a_secret_as_an_argument() -> None:
    for command in commands(app):
        for parameter in command.params:
            assert not re.search("token|secret|password|header", parameter.name or ""), (command.name, parameter.name)
        assert not any(secrets_in(line) for line in (command.epilog or "").splitlines()), command.name


# --- the documented alternatives work --------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    place = tmp_path / ".local" / "state" / "helmsman"
    place.mkdir(parents=True)
    (place / "http-token").write_text("the-token\n", encoding="utf-8")
    return tmp_path


@pytest.mark.skipif(os.name != "posix", reason="it is a line for a shell")
def test_the_command_that_gives_claude_code_its_header_does(home: Path) -> None:
    (entry,) = [block for block in blocks(ROOT / "docs" / "clients.md", "json") if "headersHelper" in block]
    helper = json.loads(entry)["mcpServers"]["helmsman"]["headersHelper"]
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    done = subprocess.run(["/bin/sh", "-c", helper], env=env, capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout) == {"Authorization": "Bearer the-token"}


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("bash")), reason="there is no curl, or no bash")
def test_the_line_for_curl_sends_the_header(home: Path) -> None:
    (line,) = [line for line in shell_lines(ROOT / "docs" / "clients.md") if line.startswith("curl ")]
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as threads:
        server.settimeout(60)
        heard = threads.submit(one_request, server)
        watched = "set -x\n" + line.replace(":8765", f":{server.getsockname()[1]}")
        done = subprocess.run(
            ["bash", "-c", watched], env=env, capture_output=True, encoding="utf-8", check=True, timeout=60
        )
        assert "Authorization: Bearer the-token\r\n" in heard.result(60)
    arguments = next(line for line in done.stderr.splitlines() if line.startswith("+ curl"))
    assert "the-token" not in arguments


def one_request(server: socket.socket) -> str:
    client, _ = server.accept()
    with client:
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(65536)
        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    return head.decode()
