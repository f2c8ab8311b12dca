"""What the HTTP server tells programs beside its API: its card for MCP clients, and figures for Prometheus."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from helmsman._version import __version__
from helmsman.httpd.listening import MCP_PATH

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from starlette.requests import Request

    from helmsman.capabilities.usage_report import UsageReport
    from helmsman.service import HelmsmanService

CARD_PATH: Final = f"{MCP_PATH}/server-card"
CATALOG_PATH: Final = "/.well-known/ai-catalog.json"
METRICS_PATH: Final = "/metrics"
OPEN_PATHS: Final = frozenset({CARD_PATH, CATALOG_PATH})
"""Paths that need no token: they name the program and its version, and nothing of the user."""
_SERVER_NAME: Final = "io.github.codex-helmsman/helmsman"
_CARD_TYPE: Final = "application/mcp-server-card+json"
_CATALOG_TYPE: Final = "application/ai-catalog+json"
_HEADERS: Final = {"Cache-Control": "public, max-age=3600", "X-Content-Type-Options": "nosniff"}
_PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"

_SPENT_SECONDS: Final = 60.0
"""Interval between two usage reports, which read the files of the agents."""

_Samples: TypeAlias = "Sequence[tuple[Mapping[str, str], float]]"


def public_routes(helm: HelmsmanService) -> list[Route]:
    """Return the routes for one Helmsman."""

    spent: tuple[float, UsageReport] | None = None

    async def metrics(_request: Request) -> Response:
        nonlocal spent
        if spent is None or time.monotonic() - spent[0] > _SPENT_SECONDS:
            spent = time.monotonic(), await helm.extras.usage.report(group_by="agent")
        return PlainTextResponse(await prometheus_text(helm, spent[1]), media_type=_PROMETHEUS)

    return [
        Route(CARD_PATH, _card, methods=["GET"]),
        Route(CATALOG_PATH, _catalog, methods=["GET"]),
        Route(METRICS_PATH, metrics, methods=["GET"]),
    ]


async def _card(request: Request) -> Response:
    """Return the server card (SEP-2127). It agrees with what the server says of itself."""
    card = {
        "$schema": "https://static.modelcontextprotocol.io/schemas/v2/server-card.schema.json",
        "name": _SERVER_NAME,
        "title": "Helmsman",
        "version": __version__,
        "description": "Steer coding agents: start work, follow it, answer their questions, stop it.",
        "remotes": [
            {
                "type": "streamable-http",
                "url": _address(request, MCP_PATH),
                "supportedProtocolVersions": [*MODERN_PROTOCOL_VERSIONS, *reversed(HANDSHAKE_PROTOCOL_VERSIONS)],
            }
        ],
    }
    return _json(card, _CARD_TYPE)


async def _catalog(request: Request) -> Response:
    entry = {
        "identifier": f"urn:air:{request.url.hostname}:helmsman",
        "displayName": "Helmsman",
        "type": _CARD_TYPE,
        "url": _address(request, CARD_PATH),
    }
    return _json({"specVersion": "1.0", "entries": [entry]}, _CATALOG_TYPE)


def _address(request: Request, path: str) -> str:
    return str(request.url.replace(path=path, query=""))


def _json(content: Mapping[str, Any], media_type: str) -> Response:
    return Response(json.dumps(content), media_type=media_type, headers=_HEADERS)


async def prometheus_text(helm: HelmsmanService, spent: UsageReport) -> str:
    """Return the figures of this hub, in the text format of Prometheus. `spent` is grouped by agent."""
    sessions = list(helm.sessions.values())
    by_agent = {group.key or "": group for group in spent.groups}
    families: Iterable[tuple[str, str, str, _Samples]] = (
        ("info", "gauge", "Version of Helmsman.", [({"version": __version__}, 1)]),
        ("turns_running", "gauge", "Turns under way.", [({}, sum(one.state.is_running for one in sessions))]),
        ("turns_queued", "gauge", "Messages that wait.", [({}, sum(len(one.queue) for one in sessions))]),
        ("turns_max", "gauge", "Turns that may run at once.", [({}, helm.settings.max_sessions)]),
        ("questions_open", "gauge", "Questions that wait.", [({}, sum(len(one.state.questions) for one in sessions))]),
        ("turns_total", "counter", "Turns.", [({"agent": by}, one.turns) for by, one in by_agent.items()]),
        (
            "tokens_total",
            "counter",
            "Tokens, cached ones included.",
            [
                ({"agent": by, "type": kind}, count)
                for by, one in by_agent.items()
                for kind, count in (("input", one.usage.input_tokens), ("output", one.usage.output_tokens))
            ],
        ),
        (
            "cost_usd_total",
            "counter",
            "Cost where it is known.",
            [({"agent": by}, one.cost_usd) for by, one in by_agent.items() if one.cost_usd is not None],
        ),
        ("notices_pending", "gauge", "Notifications to be sent.", [({}, await helm.notices.pending())]),
    )
    return "".join(_family(f"helmsman_{name}", kind, about, samples) for name, kind, about, samples in families)


def _family(name: str, kind: str, about: str, samples: _Samples) -> str:
    lines = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        # With the digits of a large counter: `g` alone rounds to six.
        lines.append(f"{name}{{{shown}}} {value:.15g}" if labels else f"{name} {value:.15g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
