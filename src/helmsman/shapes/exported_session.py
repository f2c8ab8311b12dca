"""Session in a file, to keep, to show or to continue elsewhere: `helmsman session export` and `import`.

The file holds what the transcript shows, with secrets redacted. Continuing it starts a new session whose first prompt has a
summary of the turns: what is in a file is a record, never an instruction or a permission.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any, Final

from helmsman._version import __version__
from helmsman.base.json_values import mapping, optional_text, text
from helmsman.base.redaction import redact, redact_value
from helmsman.base.sanitize import one_line
from helmsman.errors import InvalidInput
from helmsman.model.codec import read_item
from helmsman.model.events import PastTurn
from helmsman.model.prompts import handover_prompt
from helmsman.shapes.transcript import transcript_parts
from helmsman.steering.handing_over import summary_of_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from helmsman.sessions.session import Session

FORMAT: Final = "helmsman.session"
VERSION: Final = 1
# Import reads the whole file into memory.
MOST_BYTES: Final = 256 * 1024 * 1024
_STATUSES: Final = ("completed", "failed", "interrupted", "inProgress")
_AGENT_CHARS: Final = 40

# Even if a model's text got through as markup, the page could load and run nothing.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE: Final = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 25%, transparent); }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
pre { border: 1px solid var(--line); padding: .75rem; overflow-x: auto; border-radius: 6px; }
code { font: .875em/1.45 ui-monospace, monospace; }
blockquote { margin: .5rem 0 1rem; padding-left: 1rem; border-left: 3px solid var(--line); }
table { border-collapse: collapse; }
th, td { border: 1px solid var(--line); padding: .25rem .5rem; }
.kw, .fn { color: light-dark(#8250df, #d2a8ff); }
.num, .bi { color: light-dark(#0550ae, #79c0ff); }
.str { color: light-dark(#0a3069, #a5d6ff); }
.com { color: light-dark(#57606a, #8b949e); }
"""


def as_markdown(session: Session, turns: Sequence[PastTurn]) -> str:
    return redact("\n\n".join(transcript_parts(session, turns, output_lines=None)) + "\n")


def as_page(session: Session, turns: Sequence[PastTurn], as_html: Callable[[str], str | None]) -> str:
    """Return one HTML page that loads and runs nothing. `as_html` renders Markdown of a model as inert HTML."""
    # Redact before rendering: markup could split a secret into parts that no pattern matches.
    parts = (redact(part) for part in transcript_parts(session, turns, output_lines=None))
    # A part that the renderer refuses is still shown, as plain text.
    body = "\n".join(as_html(part) or f"<pre>{escape(part)}</pre>" for part in parts)
    title = escape(one_line(redact(session.state.about or session.id)))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def as_document(session: Session, turns: Sequence[PastTurn]) -> dict[str, Any]:
    """Return the session as JSON, which `read_document` reads."""
    about = {
        "sessionId": session.id,
        "agent": session.options.agent,
        "title": session.state.about,
        "directory": None if session.directory is None else str(session.directory),
        "model": session.model,
        "status": session.status,
    }
    told: dict[str, Any] = redact_value(
        {
            "session": {key: value for key, value in about.items() if value is not None},
            "turns": [
                {"id": turn.id, "status": turn.status, "items": [item.to_json() for item in turn.items]}
                for turn in turns
            ],
        }
    )
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return {"format": FORMAT, "version": VERSION, "helmsman": __version__, "exportedAt": at, **told}


@dataclass(frozen=True, slots=True)
class ExportedSession:
    """Session of a file."""

    agent: str
    title: str
    turns: tuple[PastTurn, ...]

    def prompt(self, message: str) -> str:
        """Return the prompt that continues it: the message of the user, then the record."""
        return handover_prompt(message, self.agent, summary_of_turns(self.turns))


def read_document(content: bytes) -> ExportedSession:
    """Read what `as_document` gave.

    Raises:
        InvalidInput: It is something else, or of a later version.
    """
    try:
        document = mapping(json.loads(content))
    except (ValueError, RecursionError):
        # Deep nesting raises RecursionError, not ValueError.
        document = {}
    if document.get("format") != FORMAT:
        raise InvalidInput("This is no exported session. Export one with `helmsman session export --format json`.")
    if document.get("version") != VERSION:
        # The name of the writer is text of a file, and goes into an error message.
        writer = one_line(text(document.get("helmsman")))[:_AGENT_CHARS]
        raise InvalidInput(f"Helmsman {writer} wrote this file in another format. Update Helmsman to read it.")
    about, turns = mapping(document.get("session")), document.get("turns")
    return ExportedSession(
        # Everything here is written by others: texts on one line and bounded, statuses from a fixed set.
        one_line(text(about.get("agent")))[:_AGENT_CHARS].capitalize() or "An agent",
        one_line(optional_text(about.get("title")) or ""),
        tuple(map(_turn, turns if isinstance(turns, list) else [])),
    )


def _turn(content: Any) -> PastTurn:
    turn = mapping(content)
    items, status = turn.get("items"), turn.get("status")
    return PastTurn(
        id=text(turn.get("id")),
        status=status if status in _STATUSES else "completed",
        items=tuple(read_item(item) for item in (items if isinstance(items, list) else []) if isinstance(item, dict)),
    )
