"""MCP Apps (`io.modelcontextprotocol/ui`): a card for a session, its question, or its changes, in clients that render it.

The card shows what the text of the result shows, and looks again while a session is not over. Its buttons call the tools
that the model would call, so the server's checks are the same: a client that may not answer or apply by a tool cannot by
the card. What is not shown whole can only be refused.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID, client_supports_apps
from mcp.shared.exceptions import MCPError

from helmsman.model.questions import REFUSALS

if TYPE_CHECKING:
    from helmsman.mcp.elicitation import Context

EXTENSION: Final = EXTENSION_ID
SCHEME: Final = "ui://"
_CARD: Final = Path(__file__).with_name("card.html")
_URI: Final = "ui://helmsman/{tool}/session"
_VOICES: Final = ("codex", "agent")
_WITH_CARD: Final = ("start", "say", "status", "wait", "diff")
_CALLED: Final = ("respond", "status", "apply", "discard")
# The specification reads `_meta.ui` of the resource, and has it win over that of the listing.
_META: Final[dict[str, Any]] = {"ui": {"prefersBorder": True}}


def with_card(context: Context, tool: types.Tool) -> types.Tool:
    """Return the listing of a tool, linked to the card if the client shows it."""
    # Tools of a single agent (`claude`) belong to the router, which has no card.
    voice, _, verb = tool.name.partition("_")
    if voice not in _VOICES or verb not in _WITH_CARD or not client_supports_apps(context):
        return tool
    # Only for a client that declares the extension: others would carry the link without use.
    return tool.model_copy(update={"meta": {"ui": {"resourceUri": _URI.format(tool=voice)}}})


def card_content(uri: str) -> types.TextResourceContents:
    """Return the card for the tools of a voice.

    Raises:
        MCPError: No card has this URI.
    """
    voice = next((one for one in _VOICES if uri == _URI.format(tool=one)), None)
    if voice is None:
        raise MCPError(types.INVALID_PARAMS, f"There is no resource {uri}.", {"uri": uri})
    return types.TextResourceContents(uri=uri, mime_type=APP_MIME_TYPE, text=_card(voice), _meta=_META)


@cache
def _card(voice: str) -> str:
    card = _CARD.read_text(encoding="utf-8")
    # The card calls tools by name, and a client may have only those of one voice.
    for verb in _CALLED:
        card = card.replace(f"{{{verb}}}", f"{voice}_{verb}")
    return card.replace("{refusals}", " ".join(sorted(REFUSALS)))
