"""Routes for login and logout: a code for a cookie, a proof for a code."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import Field

from helmsman.base.json_values import iso_time
from helmsman.errors import HelmsmanError
from helmsman.shapes.contract import Input, NothingInput
from helmsman.web.json_http import body, respond
from helmsman.web.proof import Challenges, place

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from helmsman.web.login import Logins


class LoginInput(Input):
    code: str = Field(max_length=200)


class ProofInput(Input):
    nonce: str = Field(min_length=20, max_length=200)


class CodeInput(ProofInput):
    challenge: str = Field(max_length=400)
    proof: str = Field(max_length=200)


class WrongCode(HelmsmanError):
    """Code was used, has expired, or never existed."""

    code = "wrong_code"


class WrongProof(HelmsmanError):
    """Proof does not show that its sender has the token."""

    code = "wrong_proof"


class LoginRoutes:
    """Answers those who want to get in, and lets people out."""

    def __init__(self, logins: Logins, challenges: Challenges) -> None:
        self._logins = logins
        self._challenges = challenges

    async def log_in(self, request: Request) -> Response:
        given = await body(request, LoginInput)
        if not self._logins.redeem(given.code):
            raise WrongCode(
                "This code is wrong, has expired or was used already. `helmsman dashboard --server URL` prints a new one."
            )
        response = respond({"ok": True})
        self._logins.log_in(request.scope, response)
        return response

    async def log_out(self, request: Request) -> Response:
        await body(request, NothingInput)
        response = respond({"ok": True})
        self._logins.log_out(request.scope, request.headers, response)
        return response

    async def new_code(self, request: Request) -> dict[str, Any]:
        await body(request, NothingInput)
        return self._code()

    async def prove(self, request: Request) -> dict[str, Any]:
        given = await body(request, ProofInput)
        challenge, proof = self._challenges.answer(given.nonce, _place(request))
        return {"challenge": challenge, "proof": proof}

    async def new_code_for_proof(self, request: Request) -> dict[str, Any]:
        given = await body(request, CodeInput)
        if not self._challenges.accept(given.nonce, given.challenge, given.proof, _place(request)):
            raise WrongProof("This does not prove that you have the token. Ask for a new challenge.")
        return self._code()

    def _code(self) -> dict[str, Any]:
        code = self._logins.new_code()
        return {
            "code": code.value,
            "path": code.path,
            "expiresAt": iso_time(datetime.fromtimestamp(code.expires_at, UTC)),
        }


def _place(request: Request) -> str:
    """Our end of the connection. The Host is what the client says, and so nothing to rely on."""
    host, port = request.scope["server"]
    return place(host, port)
