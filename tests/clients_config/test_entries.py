"""Tests of recognizing our entries, those of the old server, and others."""

from __future__ import annotations

from typing import Any

import pytest

from helmsman.clients.entries import OldServer, OwnEntry, recognise, with_tools, words_of


def entry(*words: str) -> dict[str, Any]:
    return {"command": words[0], "args": list(words[1:])}


@pytest.mark.parametrize(
    "words",
    [
        ("codex", "mcp-server"),
        ("codex", "mcp"),
        ("codex", "mcp", "serve"),
        ("codex.exe", "mcp-server"),
        ("npx", "-y", "@openai/codex", "mcp-server"),
        ("npx", "--yes", "@openai/codex@latest", "mcp-server"),
        ("npx", "@openai/codex@0.145.0", "mcp"),
        ("npx", "-y", "-p", "@openai/codex", "codex", "mcp-server"),
        ("bunx", "@openai/codex", "mcp-server"),
        ("pnpm", "dlx", "@openai/codex", "mcp-server"),
        ("npm", "exec", "@openai/codex", "--", "mcp-server"),
        ("cmd", "/c", "npx", "-y", "@openai/codex", "mcp-server"),
        ("cmd.exe", "/C", "codex", "mcp-server"),
        ("bash", "-lc", "codex mcp-server"),
        ("sh", "-c", "exec codex mcp-server"),
        ("node", "/usr/lib/node_modules/@openai/codex/bin/codex.js", "mcp-server"),
    ],
)
def test_the_old_server_is_recognised_however_it_is_started(words: tuple[str, ...]) -> None:
    assert recognise(entry(*words)) == OldServer()


@pytest.mark.parametrize("binary", ["/opt/codex/bin/codex", "C:\\Tools\\codex.exe"])
def test_a_codex_named_by_its_path_is_remembered(binary: str) -> None:
    assert recognise(entry(binary, "mcp-server")) == OldServer(binary)


@pytest.mark.parametrize(
    ("words", "defaults"),
    [
        (("codex", "-c", "model=o3", "mcp-server"), ("-c", "model=o3")),
        (("codex", "mcp-server", "--profile", "work"), ("--profile", "work")),
        (("codex", "-pwork", "mcp-server"), ("--profile", "work")),
        (("codex", "--config=a=b", "mcp-server"), ("-c", "a=b")),
        (("npx", "-y", "@openai/codex", "mcp-server", "-c", "x=y"), ("-c", "x=y")),
        (
            ("codex", "-m=o3", '-c=model_reasoning_effort="high"', "mcp-server", "--enable", "goals"),
            ("-m", "o3", "-c", 'model_reasoning_effort="high"', "-c", "features.goals=true"),
        ),
        (
            ("codex", "-m", "o3", "-c", 'model_reasoning_effort="high"', "mcp-server", "--enable", "goals"),
            ("-m", "o3", "-c", 'model_reasoning_effort="high"', "-c", "features.goals=true"),
        ),
    ],
)
def test_options_given_to_codex_become_those_of_helmsman(words: tuple[str, ...], defaults: tuple[str, ...]) -> None:
    assert recognise(entry(*words)) == OldServer(defaults=defaults)


@pytest.mark.parametrize(
    "options",
    [("-s", "danger-full-access"), ("-a", "never"), ("-C", "/src"), ("--full-auto",), ("-i", "a.png"), ("-m",)],
)
def test_options_for_which_there_is_no_place_are_seen(options: tuple[str, ...]) -> None:
    assert recognise(entry("codex", "mcp-server", *options)) == OldServer(options=options)


@pytest.mark.parametrize(
    ("words", "launch", "options"),
    [
        (("helmsman", "serve"), 1, ()),
        (("/home/me/.local/bin/helmsman", "serve", "--tools", "compat"), 1, ("--tools", "compat")),
        (("C:\\x\\helmsman.exe", "serve"), 1, ()),
        (("uvx", "codex-helmsman", "serve"), 2, ()),
        (("uvx", "codex-helmsman@0.2", "serve"), 2, ()),
        (("uvx", "--from", "codex-helmsman[codex]", "helmsman", "serve"), 4, ()),
        (("pipx", "run", "codex-helmsman", "serve", "--engine", "exec"), 3, ("--engine", "exec")),
        (("/usr/bin/python3", "-m", "helmsman", "serve"), 3, ()),
    ],
)
def test_our_own_entries_are_recognised(words: tuple[str, ...], launch: int, options: tuple[str, ...]) -> None:
    assert recognise(entry(*words)) == OwnEntry(words[:launch], options)


@pytest.mark.parametrize(
    "content",
    [
        entry("codex", "mcp", "list"),
        entry("codex", "exec", "mcp-server"),
        entry("codex"),
        entry("npx", "-y", "codex-mcp-server"),
        entry("npx", "-y", "@other/codex", "mcp-server"),
        entry("npx", "-y", "@openai/codex-sdk", "mcp-server"),
        entry("npx", "other", "@openai/codex", "mcp-server"),
        entry("bash", "-c", "cd /x && codex mcp-server"),
        entry("bash", "-c", "codex mcp-server 'open"),
        entry("my-codex", "mcp-server"),
        entry("helmsman", "doctor"),
        entry("helmsman"),
        {"url": "http://localhost/mcp"},
        {"command": ["codex", "mcp-server"]},
        {"command": "codex", "args": "mcp-server"},
        {"command": "codex", "args": [1]},
        {"command": ""},
        "codex mcp-server",
        None,
    ],
)
def test_everything_else_is_left_alone(content: object) -> None:
    assert recognise(content) is None


def test_toolsets_are_read_and_replaced_among_other_options() -> None:
    assert OwnEntry((), ("--engine", "exec", "--tools=a,b")).tools == "a,b"
    assert OwnEntry((), ("--tools", "x")).tools == "x"
    assert OwnEntry((), ("--tools",)).tools is None
    assert with_tools(("--tools", "a", "--engine", "exec"), "b") == ("--engine", "exec", "--tools", "b")
    assert with_tools(("--tools=a",), "b") == ("--tools", "b")


def test_words_of_an_entry_without_arguments() -> None:
    assert words_of({"command": "x"}) == ["x"]
