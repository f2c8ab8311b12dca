"""The dashboard as routes of the HTTP server: the page at `/`, its API under `/api`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from helmsman.web.acting import Acting
from helmsman.web.json_http import NotFound, answering
from helmsman.web.live import Live
from helmsman.web.reading import Reading
from helmsman.web.static_files import static_file
from helmsman.web.transcripts import Transcripts

if TYPE_CHECKING:
    from typing import Any

    from starlette.requests import Request

    from helmsman.service import Helmsman
    from helmsman.web.login import Logins


def dashboard_routes(helm: Helmsman, logins: Logins) -> list[Route]:
    """All routes of the dashboard (`helmsman.web.api` is their contract). Who may use them is for the server to see to."""
    reading = Reading(helm, Transcripts(helm), Live(helm))
    acting = Acting(helm, logins)
    looks = {
        "/api/overview": reading.overview,
        "/api/sessions": reading.sessions,
        "/api/sessions/{session_id}": reading.session,
        "/api/sessions/{session_id}/turns": reading.turns,
        "/api/sessions/{session_id}/transcript": reading.transcript,
        "/api/sessions/{session_id}/transcript/{index:int}": reading.entry,
        "/api/sessions/{session_id}/diff": reading.diff,
        "/api/questions": reading.questions,
        "/api/tasks": reading.tasks,
        "/api/tasks/{task_id}": reading.task,
        "/api/engines": reading.engines,
        "/api/usage": reading.usage,
        "/api/search": reading.search,
        "/api/live": reading.live,
        "/login": acting.follow_login_link,
    }
    acts = {
        "/api/login": acting.log_in,
        "/api/logout": acting.log_out,
        "/api/codes": acting.new_code,
        "/api/sessions/{session_id}/say": acting.say,
        "/api/sessions/{session_id}/steer": acting.steer,
        "/api/sessions/{session_id}/interrupt": acting.interrupt,
        "/api/sessions/{session_id}/questions/{question_id}": acting.answer,
        "/api/tasks/{task_id}/cancel": acting.cancel,
    }
    return [
        *(Route(path, answering(endpoint), methods=["GET"]) for path, endpoint in looks.items()),
        Route("/api/sessions", answering(acting.start, status=201), methods=["POST"]),
        *(Route(path, answering(endpoint), methods=["POST"]) for path, endpoint in acts.items()),
        Route("/api/{path:path}", answering(_nothing_here)),
        Route("/{path:path}", static_file, methods=["GET"]),
    ]


async def _nothing_here(_request: Request) -> dict[str, Any]:
    raise NotFound("There is nothing at this address. helmsman.web.api says what there is.")
