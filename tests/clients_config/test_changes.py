"""Installing, installing again, and uninstalling: what changes in a client's file, and that nothing else does."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from helmsman.clients.locations import BLOCKING_CALL_SECONDS, CLIENTS, Scope
from helmsman.errors import ConfigurationChanged, ConfigurationUnusable, HelmsmanError, InvalidInput
from tests.clients_config.conftest import LAUNCH, Person

PLACES: list[tuple[str, Scope]] = [(client.key, scope) for client in CLIENTS.values() for scope in client.places]

OLD = {"type": "stdio", "command": "codex", "args": ["mcp-server"], "env": {"OPENAI_API_KEY": "sk-mine"}, "timeout": 5}

CLAUDE = """{
  "numStartups": 3,
  "mcpServers": {
    "before": { "type": "http", "url": "http://x" },
    "codex": { "type": "stdio", "command": "codex",
               "args": [ "mcp-server" ], "env": {"OPENAI_API_KEY": "sk-mine"} }
  },
  "projects": {}
}"""

CODEX = """\
# mine
model = "o"  # best

[mcp_servers.old]
command = "npx"   # by npx
args = [
  "-y",  # yes
  "@openai/codex", "mcp-server",
]

[mcp_servers.old.env]
KEY = "sk-mine"

# the end
[projects."/x"]
trust_level = "trusted"
"""


@pytest.mark.parametrize(("client", "scope"), PLACES)
def test_a_new_entry_comes_into_a_new_file_and_leaves_with_it(person: Person, client: str, scope: Scope) -> None:
    assert person.install(client, scope) == ["added helmsman"]
    entry = person.servers(client, scope)["helmsman"]
    command = "helmsman" if scope == "project" else LAUNCH[0]
    assert (entry["command"], entry["args"]) == (command, ["serve"])
    assert "timeout" not in entry
    assert "tool_timeout_sec" not in entry
    assert person.install(client, scope) == []

    assert person.uninstall(client, scope) == ["removed helmsman"]
    assert not person.file(client, scope).exists()
    assert person.uninstall(client, scope) == []


@pytest.mark.parametrize(("client", "scope"), PLACES)
def test_every_old_entry_is_rewritten_in_place_and_put_back_to_the_letter(
    person: Person, client: str, scope: Scope
) -> None:
    if client == "codex":
        text, name = CODEX, "old"
    else:
        value: Any = {"codex": OLD, "other": {"command": "x"}}
        for key in reversed(person.place(client, scope).servers):
            value = {"first": 1, key: value}
        text, name = json.dumps(value, indent=3), "codex"
    path = person.write(client, text, scope)
    before = person.servers(client, scope)

    assert person.install(client, scope) == [f"rewritten {name}"]
    after = person.servers(client, scope)
    entry = after[name]
    assert list(after) == list(before)
    assert entry["args"] == ["serve", "--tools", "compat"]
    assert entry["env"] == before[name]["env"]
    if client != "codex":
        assert entry["timeout"] == 5
    assert person.install(client, scope) == []

    assert person.uninstall(client, scope) == [f"restored {name}"]
    assert path.read_text(encoding="utf-8") == text
    assert person.uninstall(client, scope) == []


def test_only_command_arguments_and_limit_of_an_old_entry_change(person: Person) -> None:
    path = person.write("claude", CLAUDE)
    person.install("claude")
    assert path.read_text(encoding="utf-8") == CLAUDE.replace(
        '"command": "codex"', f'"command": "{LAUNCH[0]}"'
    ).replace(
        '[ "mcp-server" ], "env": {"OPENAI_API_KEY": "sk-mine"} }',
        (
            '["serve", "--tools", "compat"], "env": {"OPENAI_API_KEY": "sk-mine"}, '
            f'"timeout": {BLOCKING_CALL_SECONDS * 1000} }}'
        ),
    )


def test_comments_of_a_codex_configuration_stay(person: Person) -> None:
    path = person.write("codex", CODEX)
    person.install("codex")
    text = path.read_text(encoding="utf-8")
    assert f'command = "{LAUNCH[0]}"   # by npx\nargs = ["serve", "--tools", "compat"]\n' in text
    assert f"tool_timeout_sec = {BLOCKING_CALL_SECONDS}\n" in text
    for kept in ("# mine\n", "# best\n", "# the end\n", 'KEY = "sk-mine"\n'):
        assert kept in text


def test_the_record_has_no_secret_of_the_entry_and_is_ones_own(person: Person) -> None:
    person.write("codex", CODEX)
    person.write("claude", CLAUDE)
    person.install("codex")
    person.install("claude")
    record = person.record.path
    assert "sk-mine" not in record.read_text(encoding="utf-8")
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    person.uninstall("codex")
    person.uninstall("claude")
    assert json.loads(record.read_text(encoding="utf-8"))["entries"] == []


def test_other_toolsets_can_be_asked_for(person: Person) -> None:
    person.write("claude", CLAUDE)
    person.install("claude", tools="sessions,extras")
    entry = person.servers("claude")["codex"]
    assert entry["args"] == ["serve", "--tools", "sessions,extras"]
    assert "timeout" not in entry
    assert person.install("claude", tools="compat") == ["updated codex"]
    assert person.servers("claude")["codex"]["timeout"] == BLOCKING_CALL_SECONDS * 1000
    person.uninstall("claude")
    assert person.file("claude").read_text(encoding="utf-8") == CLAUDE


def test_an_entry_of_ours_keeps_its_options_and_comes_to_point_here(person: Person) -> None:
    mine = {"command": "/gone/helmsman", "args": ["serve", "--engine", "exec"], "disabled": True}
    person.write("cursor", json.dumps({"mcpServers": {"mine": mine}}))
    assert person.install("cursor") == ["updated mine"]
    assert person.servers("cursor") == {"mine": mine | {"command": LAUNCH[0]}}
    assert person.uninstall("cursor") == ["removed mine"]
    assert json.loads(person.file("cursor").read_text(encoding="utf-8")) == {"mcpServers": {}}


def test_with_a_name_no_other_entry_is_touched(person: Person) -> None:
    person.write("claude", CLAUDE)
    assert person.install("claude", name="helm") == ["added helm"]
    assert person.servers("claude")["codex"]["command"] == "codex"
    assert person.install("claude", name="codex") == ["rewritten codex"]
    assert person.uninstall("claude", name="helm") == ["removed helm"]
    assert person.servers("claude")["codex"]["command"] == LAUNCH[0]
    assert person.uninstall("claude", name="nobody") == []


def test_a_name_that_means_something_else_is_refused(person: Person) -> None:
    path = person.write("claude", CLAUDE)
    with pytest.raises(InvalidInput, match=r"'before' that is something else\. Choose another name"):
        person.install("claude", name="before")
    person.write("cursor", '{"mcpServers": {"helmsman": {"command": "boat"}}}')
    with pytest.raises(InvalidInput, match=r"\(boat\)\. Choose another name"):
        person.install("cursor")
    assert path.read_text(encoding="utf-8") == CLAUDE


def test_options_of_an_old_entry_become_defaults_for_all_sessions(person: Person) -> None:
    words = ["-m", "o3", "-c", 'model_reasoning_effort="high"', "mcp-server"]
    text = json.dumps({"mcpServers": {"c": {"command": "codex", "args": words}}}, indent=2)
    path = person.write("cursor", text)
    person.install("cursor")
    args = person.servers("cursor")["c"]["args"]
    assert args[args.index("serve") + 1 :] == [*words[:-1], "--tools", "compat"]
    person.uninstall("cursor")
    assert path.read_text(encoding="utf-8") == text


def test_an_old_entry_with_other_options_of_codex_is_not_rewritten_for_they_would_be_lost(person: Person) -> None:
    text = '[mcp_servers.c]\ncommand = "codex"\nargs = ["-s", "read-only", "mcp-server"]\n'
    path = person.write("codex", text)
    with pytest.raises(InvalidInput, match=r"\(-s read-only\) would be lost.*--name helmsman"):
        person.install("codex")
    assert path.read_text(encoding="utf-8") == text
    assert person.install("codex", name="helmsman") == ["added helmsman"]


def test_the_codex_that_an_old_entry_named_stays_the_one_that_is_used(person: Person, tmp_path: Path) -> None:
    binary = tmp_path / "codex"
    binary.touch()
    text = json.dumps({"mcpServers": {"c": {"command": str(binary), "args": ["mcp-server"]}}}, indent=2)
    path = person.write("claude-desktop", text)
    person.install("claude-desktop")
    assert person.servers("claude-desktop")["c"]["env"] == {"CODEX_CLI_PATH": str(binary)}
    person.uninstall("claude-desktop")
    assert path.read_text(encoding="utf-8") == text


def test_variables_go_into_the_environment_of_the_entry(person: Person) -> None:
    person.install("vscode", env={"A": "1"})
    person.install("vscode", env={"B": "2"})
    assert person.servers("vscode")["helmsman"]["env"] == {"A": "1", "B": "2"}


def test_changes_after_the_installation_are_kept(person: Person) -> None:
    path = person.write("claude", CLAUDE)
    person.install("claude")
    path.write_text(path.read_text(encoding="utf-8").replace(str(BLOCKING_CALL_SECONDS * 1000), "7"), encoding="utf-8")
    person.uninstall("claude")
    entry = person.servers("claude")["codex"]
    assert (entry["command"], entry["args"], entry["timeout"]) == ("codex", ["mcp-server"], 7)


def test_old_entries_of_all_own_scopes_are_found_and_those_of_the_project_left_alone(person: Person) -> None:
    old = {"command": "codex", "args": ["mcp-server"]}
    text = json.dumps({"mcpServers": {"a": old}, "projects": {str(person.project): {"mcpServers": {"b": old}}}})
    path = person.write("claude", text)
    shared = person.write("claude", json.dumps({"mcpServers": {"c": old}}), "project")
    assert person.install("claude") == ["rewritten a", "rewritten b"]
    assert json.loads(shared.read_text(encoding="utf-8")) == {"mcpServers": {"c": old}}
    assert sorted(person.uninstall("claude")) == ["restored a", "restored b"]
    assert path.read_text(encoding="utf-8") == text


def test_two_entries_leave_nothing_of_the_file_they_made(person: Person) -> None:
    person.install("cursor", name="one")
    person.install("cursor", name="two")
    assert person.uninstall("cursor") == ["removed two", "removed one"]
    assert not person.file("cursor").exists()


def test_without_the_record_our_entries_are_still_removed(person: Person) -> None:
    person.install("claude")
    person.record.path.write_text("{", encoding="utf-8")
    assert person.uninstall("claude") == ["removed helmsman"]
    assert json.loads(person.file("claude").read_text(encoding="utf-8")) == {"mcpServers": {}}


def test_an_empty_file_is_as_good_as_none(person: Person) -> None:
    person.write("vscode", "\n")
    assert person.install("vscode") == ["added helmsman"]


# --- the file itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "text", "where"),
    [
        ("claude", '{\n  "mcpServers": }', "JSON, line 2, column 17"),
        ("claude", "// mine\n{}", "JSON, line 1, column 1"),
        ("codex", "a = \n", "TOML, .*line 1"),
        ("cursor", '{"mcpServers": [1]}', "something else than servers under mcpServers"),
        ("cursor", "[]", "Expecting an object"),
    ],
)
def test_a_file_that_does_not_parse_is_refused_and_left_alone(
    person: Person, client: str, text: str, where: str
) -> None:
    path = person.write(client, text)
    with pytest.raises(ConfigurationUnusable, match=where):
        person.install(client)
    assert path.read_text(encoding="utf-8") == text


def test_a_file_in_another_encoding_is_refused(person: Person) -> None:
    path = person.write("cursor", "{}")
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ConfigurationUnusable, match="not UTF-8, at byte 7"):
        person.install("cursor")


def test_a_directory_in_place_of_the_file_is_refused(person: Person) -> None:
    person.file("cursor").mkdir(parents=True)
    with pytest.raises(ConfigurationUnusable, match="cannot be read"):
        person.install("cursor")


def test_a_file_that_changed_after_it_was_shown_is_not_written(person: Person) -> None:
    path = person.write("claude", CLAUDE)
    (change,) = person.plan("claude")
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigurationChanged, match="Try again"):
        change.apply(person.record)
    assert path.read_text(encoding="utf-8") == "{}"
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_that_appeared_after_its_absence_was_shown_is_not_written(person: Person) -> None:
    (change,) = person.plan("claude")
    path = person.write("claude", CLAUDE)
    with pytest.raises(ConfigurationChanged):
        change.apply(person.record)
    assert path.read_text(encoding="utf-8") == CLAUDE


def test_a_read_only_file_is_refused(person: Person) -> None:
    path = person.write("claude", CLAUDE)
    path.chmod(0o444)
    with pytest.raises(ConfigurationUnusable, match=r"is read-only\. Make it writable"):
        person.install("claude")
    assert path.read_text(encoding="utf-8") == CLAUDE


def test_mode_and_link_of_a_file_are_kept(person: Person, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "claude.json"
    real.parent.mkdir()
    real.write_text(CLAUDE, encoding="utf-8")
    real.chmod(0o640)
    person.file("claude").symlink_to(real)
    person.install("claude")
    assert person.file("claude").is_symlink()
    assert LAUNCH[0] in real.read_text(encoding="utf-8")
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_a_new_file_of_ones_own_is_for_oneself_and_that_of_a_project_for_all(person: Person) -> None:
    mask = os.umask(0o022)
    try:
        person.install("claude")
        person.install("claude", "project")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(person.file("claude").stat().st_mode) == 0o600
    assert stat.S_IMODE(person.file("claude", "project").stat().st_mode) == 0o644


def test_a_state_directory_that_cannot_be_written_stops_it_before_the_file_is_touched(person: Person) -> None:
    path = person.write("claude", CLAUDE)
    person.state.write_text("a file", encoding="utf-8")
    with pytest.raises(HelmsmanError, match="HELMSMAN_STATE_DIR"):
        person.install("claude")
    assert path.read_text(encoding="utf-8") == CLAUDE


def test_the_diff_shows_the_change_and_the_missing_end_of_line(person: Person) -> None:
    path = person.write("claude", '{\n  "a": 1\n}')
    (change,) = person.plan("claude")
    assert change.diff.startswith(
        f'--- {path}\n+++ {path}\n@@ -1,3 +1,10 @@\n {{\n-  "a": 1\n+  "a": 1,\n+  "mcpServers": {{\n'
    )
    assert change.diff.endswith("\n }\n\\ No newline at end of file\n")
    (new,) = person.plan("cursor")
    assert new.diff.startswith(f"--- /dev/null\n+++ {person.file('cursor')}\n")


def test_a_file_that_vanished_after_it_was_shown_is_not_made_again(person: Person) -> None:
    path = person.write("claude", CLAUDE)
    (change,) = person.plan("claude")
    path.unlink()
    with pytest.raises(ConfigurationChanged):
        change.apply(person.record)
    assert not path.exists()


def test_secrets_of_an_entry_stay_out_of_errors(person: Person) -> None:
    person.write("cursor", '{"mcpServers": {"helmsman": {"command": "boat", "args": ["--token", "t0ps3cret"]}}}')
    with pytest.raises(InvalidInput) as refused:
        person.install("cursor")
    assert "t0ps3cret" not in refused.value.message


@pytest.mark.parametrize(
    "text",
    [
        "mcp_servers.codex.command = 'codex'\nmcp_servers.codex.args = ['mcp-server']\n",
        "mcp_servers = { codex = { command = 'codex', args = ['mcp-server'] } }\n",
        "[mcp_servers]\ncodex = { command = 'codex', args = ['mcp-server'] } # mine\n",
        "[mcp_servers.codex]\ncommand = 'codex'\nargs = ['mcp-server']\n[a]\nb = 1\n[mcp_servers.codex.env]\nX = '1'\n[c]\n",
    ],
)
def test_servers_of_codex_may_be_written_in_any_way(person: Person, text: str) -> None:
    path = person.write("codex", text)
    before = person.servers("codex")
    assert person.install("codex") == ["rewritten codex"]
    assert person.servers("codex")["codex"]["args"] == ["serve", "--tools", "compat"]
    person.uninstall("codex")
    assert person.servers("codex") == before
    assert ("# mine" in text) == ("# mine" in path.read_text(encoding="utf-8"))
