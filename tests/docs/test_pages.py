"""What the documentation says can be followed: links lead somewhere, commands parse, names exist."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path

import click
import pytest

from helmsman.cli.app import app
from helmsman.settings import SETTINGS
from tests.docs.pages import PAGES, ROOT, anchors, blocks, commands, links, name_of, read

every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)

OTHER_VARIABLES = {
    "HELMSMAN_CLIENTS_CACHE",
    "HELMSMAN_CODEX_CACHE",
    "HELMSMAN_CODEX_REMOTE_TOKEN",
    "HELMSMAN_E2E",
    "HELMSMAN_PORT",
    "HELMSMAN_TEST_CHROMIUM",
    "HELMSMAN_TEST_CODEX",
    "HELMSMAN_TOKEN",
}
"""Variables that are no settings: of the tests, that of a worktree, one that only the environment has, and one that an
example makes up."""


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@every_page
def test_commands_can_be_typed_as_they_stand(page: Path) -> None:
    wrong = [f"{' '.join(words)}: {problem}" for words in commands(page) if (problem := _problem(words))]
    assert not wrong


@every_page
def test_variables_exist(page: Path) -> None:
    names = {name for setting in SETTINGS.values() for name in (setting.variable, *setting.other_names)}
    known = names | OTHER_VARIABLES
    assert set(re.findall(r"\bHELMSMAN_[A-Z0-9_]+\b", read(page))) <= known


@every_page
def test_code_and_data_can_be_read_by_what_reads_them(page: Path) -> None:
    for block in blocks(page, "toml"):
        tomllib.loads(block)
    for block in blocks(page, "json"):
        json.loads(block)
    for block in blocks(page, "python"):
        compile(block, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_every_command_is_on_some_page() -> None:
    said = "\n".join(map(read, PAGES))
    missing = [name for name in app.list_commands(click.Context(app)) if f"helmsman {name}" not in said]
    assert not missing


def test_the_readme_names_the_demo_and_the_tests() -> None:
    made = [words for words in commands(ROOT / "README.md") if words[0] == "make"]
    assert made[:2] == [["make", "demo"], ["make", "test"]]


def test_every_page_is_in_the_index() -> None:
    docs = ROOT / "docs"
    listed = links(docs / "README.md")
    assert {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")} - {"README.md"} <= listed


def test_the_page_on_architecture_names_every_part_and_no_other() -> None:
    page = read(ROOT / "docs" / "architecture.md")
    source = ROOT / "src" / "helmsman"
    parts = {f"{path.name}/" for path in source.iterdir() if (path / "__init__.py").exists()}
    parts |= {path.name for path in source.glob("*.py") if not path.name.startswith("_")}
    assert {part for part in parts if f"`{part}`" not in page} == set()
    everywhere = {
        path.name for path in (*source.rglob("*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("scripts/*.py"))
    }
    named = {name.rsplit("/", 1)[-1] for name in re.findall(r"`([\w/]+\.py)`", page)}
    assert named <= everywhere


def _problem(words: list[str]) -> str | None:
    """Return the error in a command; None if it is valid."""
    if words[0] == "make":
        targets = set(re.findall(r"^([a-z-]+):", read(ROOT / "Makefile"), re.MULTILINE))
        unknown = [word for word in words[1:] if "=" not in word and word not in targets]
        return f"no target {unknown}" if unknown else None
    try:
        _parse(app, words[1:])
    except click.exceptions.Exit:
        return None
    except click.UsageError as error:
        # Files in examples are the reader's; whether they are there is not the question.
        return None if "does not exist" in error.message else error.message
    return None


def _parse(command: click.Command, arguments: list[str], parent: click.Context | None = None) -> None:
    context = command.make_context(command.name, list(arguments), parent=parent)
    if isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        if rest:
            name, found, more = command.resolve_command(context, rest)
            assert found is not None, name
            _parse(found, more, context)
