"""The dashboard as routes of the HTTP server: the page at `/`, its API under `/api`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.routing import Route

from helmsman.web.api import api_routes
from helmsman.web.static_files import static_file

if TYPE_CHECKING:
    from helmsman.service import Helmsman
    from helmsman.web.login import Logins
    from helmsman.web.proof import Challenges


def dashboard_routes(helm: Helmsman, logins: Logins, challenges: Challenges) -> list[Route]:
    """All of the dashboard. The server decides who may use it."""
    return [*api_routes(helm, logins, challenges), Route("/{path:path}", static_file, methods=["GET"])]
