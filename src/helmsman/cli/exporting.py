"""`helmsman session export` and `import`: a session as a file, and a file as a session."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from helmsman.cli.command import cli_command
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.host import host
from helmsman.cli.on_session import on_session, session_argument, with_helmsman
from helmsman.cli.output import print_result
from helmsman.cli.store import new_file
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from helmsman.client import Helmsman
    from helmsman.model.options import TurnOptions

_FORMATS = ("md", "html", "json")
_CONTINUE = "Say what was done so far and what is left. Change nothing yet."


@cli_command(
    "export",
    "Write a session to a file: Markdown, a web page or JSON.",
    "helmsman session export 3b2d5c8e --output session.html",
    "helmsman session export 3b2d5c8e --format json > session.json",
)
@session_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    help="By default as the file is called, else md (json with --json).",
)
@click.option(
    "--output", metavar="FILE", type=click.Path(), help="Write to a new file, for you alone.  [default: stdout]"
)
def export_command(session: str, form: str | None, output: str | None, as_json: bool) -> None:
    """Write a session with all its turns: prompts, messages, commands with their output, changes, questions and answers.

    Secrets that Helmsman recognises are redacted; read the file before you pass it on. The page is one file that loads and
    runs nothing. `helmsman session import` continues a JSON file, on any machine and with any agent.

    SESSION is a part of an id or title, or `-` for the last one; without it, the one running here or the last of this
    directory.
    """
    from helmsman.shapes.exported_session import as_document, as_markdown, as_page
    from helmsman.web.markdown import as_html

    host().require_own_process()
    suffix = "" if output is None else Path(output).suffix.removeprefix(".")
    form = form or (suffix if suffix in _FORMATS else "json" if as_json else "md")

    async def render(helm: Helmsman, session_id: str) -> str:
        looked_at, turns = await helm.session(session_id), await helm.history(session_id)
        if form == "json":
            return json.dumps(as_document(looked_at, turns), indent=1, ensure_ascii=False) + "\n"
        return as_markdown(looked_at, turns) if form == "md" else as_page(looked_at, turns, as_html)

    session_id, rendered = on_session(session, render)
    content = rendered.encode("utf-8", "backslashreplace").decode()
    with new_file(output) as file:
        file.write(content)
    if output is not None:
        shown = {"sessionId": session_id, "file": output, "format": form}
        print_result(f"Wrote session {session_id} to {output}.", shown, as_json=as_json)


@cli_command(
    "import",
    "Continue an exported session here, with any agent.",
    "helmsman session import session.json",
    'helmsman session import session.json "Finish the tests" --agent claude',
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.argument("message", required=False, default=_CONTINUE, metavar="[MESSAGE]")
@click.option("--agent", metavar="NAME", help="The agent that continues.  [default: as configured]")
@click.option("--worktree", is_flag=True, help="Let it work in a new git worktree.")
def import_command(file: str, message: str, agent: str | None, worktree: bool, as_json: bool) -> int:
    """Start a new session in this directory that knows what was said and done in an exported one.

    Its first prompt is MESSAGE, followed by a summary of the turns of the file, as a record. Files, permissions and rules do
    not come along: the session works on what is in this directory, and may do what you configured for new sessions.
    """
    from helmsman.cli.displays import new_display
    from helmsman.cli.follow import Talk, follow
    from helmsman.shapes.exported_session import MOST_BYTES, read_document
    from helmsman.step import run_step

    settings = settings_of_command()
    path = Path(file)
    if path.stat().st_size > MOST_BYTES:
        raise InvalidInput(f"{file} is larger than {MOST_BYTES // 1024**2} MiB, which no exported session is.")
    prompt = read_document(path.read_bytes()).prompt(message)

    async def start(helm: Helmsman) -> int:
        options: TurnOptions = {} if agent is None else {"agent": agent}
        step = partial(run_step, prompt, helm=helm, worktree=worktree, **options)
        return (await follow(step, new_display(settings, as_json=as_json), talk=Talk(helm=helm))).exit_code

    return with_helmsman(start, settings=settings)
