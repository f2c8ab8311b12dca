"""Values and tables go into a TOML file and come out again, and nothing else in it moves."""

from __future__ import annotations

import tomllib

import pytest

from helmsman.clients.json_file import NotReadable
from helmsman.clients.toml_file import TomlFile

ENTRY = {"command": "/bin/helmsman", "args": ["serve"], "env": {"A": "1"}}
PATH = ("mcp_servers", "helmsman")

CONFIG = '''\
# mine
model = "x"  # the best

[mcp_servers.codex] # old
command = "codex" # by name
args = [
  "mcp-server", # the server
]
env = { KEY = "1" }

# about the project
[projects."/a b"]
trust_level = "trusted"
note = """
[mcp_servers.helmsman]
"""
'''

STYLES = [
    "",
    'model = "x"\n',
    'model = "x"',
    "[a]\nb = 1\n\n\n",
    CONFIG,
    CONFIG.replace("\n", "\r\n"),
    "[mcp_servers]\n",
    '[mcp_servers.a]\ncommand = "x"\n\n[mcp_servers.a.env]\nA = "1"\n',
]


@pytest.mark.parametrize("text", STYLES)
def test_a_table_that_was_added_can_be_taken_out_to_the_last_character(text: str) -> None:
    before = TomlFile(text)
    added = before.with_value(PATH, ENTRY)
    assert added.value == before.value | {"mcp_servers": {**before.value.get("mcp_servers", {}), "helmsman": ENTRY}}
    assert added.text.startswith(text)
    removed = added.without(PATH)
    assert removed.text == (text if not text or text.endswith("\n") else f"{text}\n")


def test_a_table_in_the_middle_goes_with_its_own_tables_and_the_comment_of_the_next_stays() -> None:
    ours = '[mcp_servers.helmsman]\ncommand = "y"\n\n[mcp_servers.helmsman.env]\nB = "1"\n'
    text = f"[a]\nx = 1\n\n{ours}\n# of c\n[c]\nz = 1\n"
    assert TomlFile(text).without(PATH).text == "[a]\nx = 1\n\n# of c\n[c]\nz = 1\n"


def test_brackets_in_texts_comments_and_lists_are_no_headers() -> None:
    text = """[mcp_servers.helmsman] # [x]
command = '[y]'
args = [
  "a", # [b]
  '''
[c]
''',
]

[[list]]
a = [
  [1],
[2]
]
"""
    assert TomlFile(text).without(PATH).text == "[[list]]\na = [\n  [1],\n[2]\n]\n"


def test_values_are_changed_in_place_and_put_back_as_they_were_written() -> None:
    file = TomlFile(CONFIG)
    source = file.source(("mcp_servers", "codex", "args"))
    assert source == '[\n  "mcp-server", # the server\n]'
    changed = file.with_value(("mcp_servers", "codex", "command"), "/bin/helmsman")
    changed = changed.with_value(("mcp_servers", "codex", "args"), ["serve"])
    assert 'command = "/bin/helmsman" # by name\nargs = ["serve"]\n' in changed.text
    back = changed.with_source(("mcp_servers", "codex", "args"), source)
    assert back.with_source(("mcp_servers", "codex", "command"), '"codex"').text == CONFIG


def test_a_value_that_was_added_can_be_taken_out() -> None:
    path = ("mcp_servers", "codex", "tool_timeout_sec")
    added = TomlFile(CONFIG).with_value(path, 5)
    assert added.value["mcp_servers"]["codex"]["tool_timeout_sec"] == 5
    assert added.without(path).text == CONFIG
    assert TomlFile(CONFIG).without(path).text == CONFIG


def test_servers_in_one_line_are_changed_in_that_line() -> None:
    file = TomlFile('mcp_servers = { codex = { command = "codex", args = ["mcp-server"] } }\n')
    added = file.with_value(PATH, ENTRY)
    assert added.value["mcp_servers"]["helmsman"] == ENTRY
    assert added.without(PATH).value == file.value
    changed = file.with_value(("mcp_servers", "codex", "command"), "x")
    assert changed.value["mcp_servers"]["codex"] == {"command": "x", "args": ["mcp-server"]}


def test_names_that_need_quotes_get_them() -> None:
    path = ("mcp_servers", "my helmsman")
    added = TomlFile("").with_value(path, ENTRY)
    assert tomllib.loads(added.text) == {"mcp_servers": {"my helmsman": ENTRY}}
    assert added.without(path).text == ""


def test_an_invalid_toml_is_refused_with_its_place() -> None:
    with pytest.raises(NotReadable, match="line 2"):
        _ = TomlFile("a = 1\nb = \n").value
    with pytest.raises(NotReadable, match="no table mcp_servers"):
        TomlFile("").with_source(("mcp_servers", "x"), "1")
