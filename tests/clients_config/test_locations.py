"""Where each client keeps its servers, on every platform."""

from __future__ import annotations

from pathlib import PurePath, PurePosixPath, PureWindowsPath

import pytest

from helmsman.clients.locations import CLIENTS, ClientPlatform, Scope
from helmsman.errors import InvalidInput


def client_platform(platform: str, home: PurePath, project: PurePath, **env: str) -> ClientPlatform:
    return ClientPlatform(platform=platform, env=env, home=home, project=project, claude_project=project)


LINUX = client_platform("linux", PurePosixPath("/home/me"), PurePosixPath("/work/p"))
MAC = client_platform("darwin", PurePosixPath("/Users/me"), PurePosixPath("/work/p"))
WINDOWS = client_platform(
    "win32",
    PureWindowsPath("C:\\Users\\me"),
    PureWindowsPath("C:\\work\\p"),
    APPDATA="C:\\Users\\me\\AppData\\Roaming",
)


@pytest.mark.parametrize(
    ("client", "scope", "linux", "mac", "windows"),
    [
        ("claude", "user", "/home/me/.claude.json", "/Users/me/.claude.json", "C:\\Users\\me\\.claude.json"),
        ("claude", "local", "/home/me/.claude.json", "/Users/me/.claude.json", "C:\\Users\\me\\.claude.json"),
        ("claude", "project", "/work/p/.mcp.json", "/work/p/.mcp.json", "C:\\work\\p\\.mcp.json"),
        (
            "claude-desktop",
            "user",
            "/home/me/.config/Claude/claude_desktop_config.json",
            "/Users/me/Library/Application Support/Claude/claude_desktop_config.json",
            "C:\\Users\\me\\AppData\\Roaming\\Claude\\claude_desktop_config.json",
        ),
        (
            "cursor",
            "user",
            "/home/me/.cursor/mcp.json",
            "/Users/me/.cursor/mcp.json",
            "C:\\Users\\me\\.cursor\\mcp.json",
        ),
        ("cursor", "project", "/work/p/.cursor/mcp.json", "/work/p/.cursor/mcp.json", "C:\\work\\p\\.cursor\\mcp.json"),
        (
            "vscode",
            "user",
            "/home/me/.config/Code/User/mcp.json",
            "/Users/me/Library/Application Support/Code/User/mcp.json",
            "C:\\Users\\me\\AppData\\Roaming\\Code\\User\\mcp.json",
        ),
        ("vscode", "project", "/work/p/.vscode/mcp.json", "/work/p/.vscode/mcp.json", "C:\\work\\p\\.vscode\\mcp.json"),
        (
            "codex",
            "user",
            "/home/me/.codex/config.toml",
            "/Users/me/.codex/config.toml",
            "C:\\Users\\me\\.codex\\config.toml",
        ),
        (
            "codex",
            "project",
            "/work/p/.codex/config.toml",
            "/work/p/.codex/config.toml",
            "C:\\work\\p\\.codex\\config.toml",
        ),
    ],
)
def test_each_platform_has_its_place(client: str, scope: Scope, linux: str, mac: str, windows: str) -> None:
    found = [CLIENTS[client].location(scope, around).path for around in (LINUX, MAC, WINDOWS)]
    assert [str(path) for path in found] == [linux, mac, windows]


@pytest.mark.parametrize(
    ("variable", "client", "path"),
    [
        ("CLAUDE_CONFIG_DIR", "claude", "/else/.claude.json"),
        ("CODEX_HOME", "codex", "/else/config.toml"),
        ("XDG_CONFIG_HOME", "vscode", "/else/Code/User/mcp.json"),
    ],
)
def test_the_environment_moves_a_file(variable: str, client: str, path: str) -> None:
    moved = client_platform("linux", LINUX.home, LINUX.project, **{variable: "/else"})
    assert CLIENTS[client].location("user", moved).path == PurePosixPath(path)


def test_servers_stand_under_the_keys_of_their_client() -> None:
    keys = {client.key: client.location("user", LINUX).servers for client in CLIENTS.values()}
    assert keys["claude"] == keys["claude-desktop"] == keys["cursor"] == ("mcpServers",)
    assert (keys["vscode"], keys["codex"]) == (("servers",), ("mcp_servers",))
    assert CLIENTS["claude"].location("local", LINUX).servers == ("projects", "/work/p", "mcpServers")
    assert CLIENTS["claude"].location("local", WINDOWS).servers == ("projects", "C:/work/p", "mcpServers")


def test_a_scope_that_a_client_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(InvalidInput, match=r"Claude Desktop has no scope project\. Use one of: user\."):
        CLIENTS["claude-desktop"].location("project", LINUX)
