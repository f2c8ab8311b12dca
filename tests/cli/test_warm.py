"""Tests that the small program which replaces `helmsman` in the tests behaves like the command."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests import warm
from tests.cli.conftest import Cli

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no forks")

SECONDS = 60


def started(cli: Cli, *arguments: str) -> subprocess.Popen[bytes]:
    assert warm.server() is not None
    return subprocess.Popen(
        warm.command(*arguments), env=cli.env, cwd=cli.directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def test_it_has_the_streams_and_the_exit_code_of_the_command(bare_cli: Cli) -> None:
    with started(bare_cli, "--version") as command:
        said, _ = command.communicate(timeout=SECONDS)
        assert (command.returncode, said.startswith(b"helmsman ")) == (0, True)
    with started(bare_cli, "no-such-command") as command:
        command.communicate(timeout=SECONDS)
        assert command.returncode == 2


def test_a_signal_is_passed_on_and_its_exit_code_comes_back(bare_cli: Cli) -> None:
    with started(bare_cli, "serve") as command:
        assert b'"result"' in greeted(command)
        command.send_signal(signal.SIGTERM)
        assert command.wait(SECONDS) == 143


def test_when_it_is_killed_the_command_goes_too(bare_cli: Cli) -> None:
    with started(bare_cli, "serve") as command:
        greeted(command)
        command.kill()
        assert command.stdout is not None
        assert command.stdout.read() == b""  # the other end is closed everywhere
        assert command.wait(SECONDS) == -signal.SIGKILL


def greeted(command: subprocess.Popen[bytes]) -> bytes:
    """The server's first answer: it is up."""
    assert command.stdin is not None
    assert command.stdout is not None
    command.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
    command.stdin.flush()
    return command.stdout.readline()
