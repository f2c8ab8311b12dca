"""OAuth for remote MCP clients: the server protects `/mcp` and is its own small authorization server. Off by default.

A client finds the metadata (RFC 9728, RFC 8414), and sends the user's browser to `/authorize` with its own address as its id
(`web/client_documents.py`), PKCE (S256) and the resource that it wants (RFC 8707). That page is one of the dashboard's
files: it asks for the dashboard's login, then asks this server to describe the request, and shows it. Only a click there
grants anything, for exactly the client, address and resource that were shown. Clients get a code, and for it a token that
works for `/mcp` at this address and for nothing else, for 15 minutes, and a refresh token that works once. The user takes
a grant back on the dashboard's page Engines.

Addresses are derived from the request, whose Host was checked before. There is no OAuth over plain HTTP but on loopback.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import anyio.to_thread
from mcp.server.auth.handlers.token import TokenHandler
from mcp.server.auth.middleware.client_auth import ClientAuthenticator
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyUrl, Field
from starlette.requests import Request
from starlette.routing import Route

from helmsman.base.addresses import is_loopback
from helmsman.base.json_values import iso_time
from helmsman.base.structs import Value, replace
from helmsman.errors import InvalidInput
from helmsman.shapes.contract import Input, NothingInput
from helmsman.web.client_documents import InvalidClient, OAuthClient, client_address, fetch_client
from helmsman.web.grants import ACCESS_TIME, GrantBook, GrantNotFound, digest
from helmsman.web.json_http import Routes, respond, route, whole_body
from helmsman.web.static_files import page_file

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Scope

    from helmsman.web.grants import Grant, Tokens

AUTHORIZE_PATH: Final = "/authorize"
TOKEN_PATH: Final = "/token"  # noqa: S105 - a path
REVOKE_PATH: Final = "/revoke"
RESOURCE_PATH: Final = "/.well-known/oauth-protected-resource"
SERVER_PATH: Final = "/.well-known/oauth-authorization-server"
SCOPE: Final = "helmsman"
"""The only scope: to call the tools of this server."""
_PAGE: Final = "authorize.html"
_PENDING_SECONDS: Final = 600.0
# Exchanged by a program right away, so a minute is long.
_CODE_SECONDS: Final = 60.0
# A stranger may open the page often.
_MOST_PENDING: Final = 50
_CHALLENGE_CHARS: Final = 43
_MAX_QUERY: Final = 4000


class AuthorizeInput(Input):
    """Parameters of `/authorize`, as the page read them from its address."""

    query: dict[str, str] = Field(max_length=30)


class DecisionInput(Input):
    """Decision of the user about a request that was shown."""

    request: str = Field(max_length=100)
    allow: bool


class _Asked(Value, frozen=True, kw_only=True):
    """Request of a client, checked: what the page shows, and what a click there grants."""

    client: OAuthClient
    redirect_uri: str
    challenge: str
    resource: str
    issuer: str
    state: str | None
    until: float


class _Granted(Value, frozen=True, kw_only=True):
    """Code that was given out. It is kept for a while after its use: a second use ends the grant."""

    asked: _Asked
    until: float
    grant: str | None = None


class OAuth(Routes):
    """OAuth of one server."""

    def __init__(
        self,
        grants: GrantBook,
        *,
        mcp_path: str,
        fetch: Callable[[str], Awaitable[OAuthClient]] = fetch_client,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.grants = grants
        self._mcp_path = mcp_path
        self._fetch = fetch
        self._clock = clock
        self._pending: OrderedDict[str, _Asked] = OrderedDict()
        self._codes: OrderedDict[str, _Granted] = OrderedDict()
        provider = _Provider(self)
        self._tokens = TokenHandler(provider, ClientAuthenticator(provider))

    # --- what the guard asks ----------------------------------------------------------------------------------------

    def is_open(self, method: str, path: str) -> bool:
        """Return whether a request needs no login: metadata, the page, and what clients send a code or a token to."""
        if method == "POST":
            return path in (TOKEN_PATH, REVOKE_PATH)
        return path in (AUTHORIZE_PATH, SERVER_PATH, RESOURCE_PATH + self._mcp_path)

    def serves(self, scope: Scope, host: str | None) -> bool:
        """Return whether there is OAuth at the address of a request: not where others could read the tokens."""
        return scope["scheme"] == "https" or (host is not None and is_loopback(host))

    def grant_of(self, scope: Scope, host: str, token: str) -> Grant | None:
        """Return the grant of an access token, if it is for what the request is for."""
        # Tokens open /mcp and nothing else, least of all the dashboard.
        if scope["path"] != self._mcp_path:
            return None
        grant = self.grants.with_access(token)
        # A token for another address of this server is not valid here (RFC 8707).
        return grant if grant is not None and grant.resource == self._resource(_base(scope, host)) else None

    def challenge(self, scope: Scope, host: str, *, has_token: bool) -> str:
        """Return the header that tells a client where to ask for access."""
        where = f'resource_metadata="{_base(scope, host)}{RESOURCE_PATH}{self._mcp_path}", scope="{SCOPE}"'
        return f'Bearer error="invalid_token", {where}' if has_token else f"Bearer {where}"

    # --- routes ------------------------------------------------------------------------------------------------------

    def routes(self) -> list[Route]:
        return [
            Route(RESOURCE_PATH + self._mcp_path, self._resource_metadata, methods=["GET"]),
            Route(SERVER_PATH, self._server_metadata, methods=["GET"]),
            Route(AUTHORIZE_PATH, self._page, methods=["GET"]),
            *super().routes(),
        ]

    async def _resource_metadata(self, request: Request) -> Response:
        base = _base_of(request)
        return respond(
            {
                "resource": self._resource(base),
                "resource_name": "Helmsman",
                "authorization_servers": [base],
                "scopes_supported": [SCOPE],
                "bearer_methods_supported": ["header"],
            }
        )

    async def _server_metadata(self, request: Request) -> Response:
        base = _base_of(request)
        return respond(
            {
                "issuer": base,
                "authorization_endpoint": base + AUTHORIZE_PATH,
                "token_endpoint": base + TOKEN_PATH,
                "revocation_endpoint": base + REVOKE_PATH,
                "scopes_supported": [SCOPE],
                "response_types_supported": ["code"],
                "response_modes_supported": ["query"],
                "grant_types_supported": ["authorization_code", "refresh_token"],
                "token_endpoint_auth_methods_supported": ["none"],
                "revocation_endpoint_auth_methods_supported": ["none"],
                "code_challenge_methods_supported": ["S256"],
                "client_id_metadata_document_supported": True,
                "authorization_response_iss_parameter_supported": True,
            }
        )

    async def _page(self, _request: Request) -> Response:
        """Return the page that asks the user. It is the same for every request: its script reads the address."""
        return await page_file(_PAGE)

    def _resource(self, base: str) -> str:
        return base + self._mcp_path

    # --- the page ----------------------------------------------------------------------------------------------------

    @route("/api/oauth/request", AuthorizeInput)
    async def _describe(self, request: Request, asked_for: AuthorizeInput) -> dict[str, Any]:
        """Check a request of a client. Return what the page shows, and the id under which it can be decided.

        The client's document is read once: exactly what the page shows is granted.
        """
        given = asked_for.query
        base, resource = _base_of(request), given.get("resource", "")
        # Before anything is fetched.
        if sum(map(len, given.values())) > _MAX_QUERY:
            raise InvalidInput("The program's request is too long.")
        # Checked before it is fetched, so that only public addresses are contacted.
        client_address(given.get("client_id", ""))
        client = await self._fetch(given["client_id"])
        uri = given.get("redirect_uri", "")
        # Errors are sent only to an address that belongs to the client.
        if not client.may_redirect_to(uri) or not _is_safe(uri):
            raise InvalidClient("The program asks to be answered at an address that its document does not list.")
        wrong = _wrong_in(given, resource == self._resource(base))
        if wrong is not None:
            error, about = wrong
            return {"problem": about, "redirect": _answer(uri, base, given.get("state"), error=error)}
        now = self._clock()
        asked = _Asked(
            client=client,
            redirect_uri=uri,
            challenge=given["code_challenge"],
            resource=resource,
            issuer=base,
            state=given.get("state"),
            until=now + _PENDING_SECONDS,
        )
        name = secrets.token_urlsafe(16)
        # Undecided requests are dropped here, so no timer is needed.
        self._pending = OrderedDict((key, one) for key, one in self._pending.items() if one.until > now)
        self._pending[name] = asked
        _keep_newest(self._pending)
        target = urlsplit(uri)
        return {
            "request": name,
            "name": client.name,
            "clientId": client.id,
            "clientHost": urlsplit(client.id).hostname,
            "redirectUri": uri,
            "isLocal": is_loopback(target.hostname or ""),
            "resource": resource,
        }

    @route("/api/oauth/decision", DecisionInput)
    async def _decide(self, request: Request, given: DecisionInput) -> dict[str, Any]:
        # Popped: each request is decided once.
        asked = self._pending.pop(given.request, None)
        # Shown under one address and decided under another, it would be for another issuer.
        if asked is None or asked.until <= self._clock() or asked.issuer != _base_of(request):
            raise InvalidInput("This request is no longer open. Start again in the program that asked.")
        if not given.allow:
            return {"redirect": _answer(asked.redirect_uri, asked.issuer, asked.state, error="access_denied")}
        code = secrets.token_urlsafe(32)
        self._drop_old_codes()
        # Only a digest is kept.
        self._codes[digest(code)] = _Granted(asked=asked, until=self._clock() + _CODE_SECONDS)
        _keep_newest(self._codes)
        return {"redirect": _answer(asked.redirect_uri, asked.issuer, asked.state, code=code)}

    @route("/api/grants")
    async def _listed(self, _request: Request) -> dict[str, Any]:
        grants = await anyio.to_thread.run_sync(self.grants.all)
        return {
            "grants": [
                {
                    "id": one.id,
                    "name": one.client_name,
                    "clientId": one.client_id,
                    "resource": one.resource,
                    "addedAt": iso_time(one.added_at),
                    "usedAt": iso_time(one.refreshed_at),
                }
                for one in grants
            ]
        }

    @route("/api/grants/{grant_id}/revoke", NothingInput)
    async def _take_back(self, request: Request, _given: NothingInput) -> dict[str, Any]:
        grant = await anyio.to_thread.run_sync(self.grants.revoke, request.path_params["grant_id"])
        return {"revoked": grant.id}

    # --- clients -----------------------------------------------------------------------------------------------------

    @route(TOKEN_PATH, method="POST")
    async def _token(self, request: Request) -> ASGIApp:
        """Exchange a code or a refresh token. The resource, where it is named, must be that of this server."""
        # Read here, and again by the SDK's handler.
        request = await _in_full(request)
        resource = (await request.form()).get("resource")
        if resource is not None and resource != self._resource(_base_of(request)):
            return respond({"error": "invalid_target", "error_description": "There is no such resource here."}, 400)
        answer: Response = await self._tokens.handle(request)
        return answer

    @route(REVOKE_PATH, method="POST")
    async def _revoke(self, request: Request) -> Response:
        """Take back a token (RFC 7009). The answer says nothing about tokens that are not known."""
        token = (await (await _in_full(request)).form()).get("token")
        if isinstance(token, str):
            given = digest(token)
            for grant in self.grants.all():
                if given in (grant.access, grant.refresh):
                    with suppress(GrantNotFound):
                        await anyio.to_thread.run_sync(self.grants.revoke, grant.id)
        return respond({})

    def is_known(self, client_id: str) -> bool:
        """Return whether the user has granted a client anything. No other is answered, and nothing is fetched for it."""
        has_code = any(one.asked.client.id == client_id for one in self._codes.values())
        return has_code or any(one.client_id == client_id for one in self.grants.all())

    async def code(self, client_id: str, code: str) -> _Asked | None:
        """Return the request that a code was given for. A code that was used before ends its grant."""
        self._drop_old_codes()
        found = self._codes.get(digest(code))
        if found is None or found.asked.client.id != client_id:
            return None
        # A code that comes twice was stolen, so its grant ends.
        if found.grant is not None:
            with suppress(GrantNotFound):
                await anyio.to_thread.run_sync(self.grants.revoke, found.grant)
            return None
        return found.asked

    async def exchange(self, code: str) -> Tokens | None:
        """Return the tokens for a code, once."""
        found = self._codes.get(digest(code))
        if found is None or found.grant is not None:
            return None
        asked = found.asked
        used = replace(found, until=self._clock() + _PENDING_SECONDS, grant="")
        self._codes[digest(code)] = used  # before the first wait: it is used once
        add = partial(
            self.grants.add, client_id=asked.client.id, client_name=asked.client.name, resource=asked.resource
        )
        grant, tokens = await anyio.to_thread.run_sync(add)
        self._codes[digest(code)] = replace(used, grant=grant.id)
        return tokens

    def _drop_old_codes(self) -> None:
        now = self._clock()
        self._codes = OrderedDict((key, one) for key, one in self._codes.items() if one.until > now)


class _Provider(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Codes and tokens for the SDK's token endpoint, which checks PKCE, the redirect address and the client."""

    def __init__(self, oauth: OAuth) -> None:
        self._oauth = oauth

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        if not self._oauth.is_known(client_id):
            return None
        return OAuthClientInformationFull(client_id=client_id, token_endpoint_auth_method="none")  # noqa: S106 - no secret

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        asked = await self._oauth.code(client.client_id, authorization_code)
        if asked is None:
            return None
        return AuthorizationCode(
            code=authorization_code,
            scopes=[SCOPE],
            expires_at=time.time() + _CODE_SECONDS,  # what has expired was dropped
            client_id=client.client_id,
            code_challenge=asked.challenge,
            redirect_uri=AnyUrl(asked.redirect_uri),
            redirect_uri_provided_explicitly=True,
            resource=asked.resource,
        )

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        return _token(await self._oauth.exchange(authorization_code.code))

    async def load_refresh_token(self, client: OAuthClientInformationFull, refresh_token: str) -> RefreshToken | None:
        grant = await anyio.to_thread.run_sync(self._oauth.grants.with_refresh, refresh_token)
        if grant is None:
            return None
        return RefreshToken(token=refresh_token, client_id=grant.client_id, scopes=[SCOPE], resource=grant.resource)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        refreshed = await anyio.to_thread.run_sync(self._oauth.grants.refresh, refresh_token.token)
        return _token(None if refreshed is None else refreshed[1])

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        raise NotImplementedError  # there is no registration

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        raise NotImplementedError  # the page does that

    async def load_access_token(self, token: str) -> AccessToken | None:
        raise NotImplementedError  # the guard does that

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        raise NotImplementedError  # the SDK's endpoint takes no public clients


def _token(tokens: Tokens | None) -> OAuthToken:
    if tokens is None:
        raise TokenError("invalid_grant", "It was used already.")
    seconds = int(ACCESS_TIME.total_seconds())
    return OAuthToken(access_token=tokens.access, refresh_token=tokens.refresh, expires_in=seconds, scope=SCOPE)


def _wrong_in(given: Mapping[str, str], is_resource: bool) -> tuple[str, str] | None:
    """Return the error of a request that is told to the client, and a sentence for the user."""
    if given.get("response_type") != "code":
        return "unsupported_response_type", "The program asks for another kind of answer than a code."
    challenge = given.get("code_challenge", "")
    # A SHA-256 in base64url has 43 characters.
    if given.get("code_challenge_method") != "S256" or len(challenge) != _CHALLENGE_CHARS or not challenge.isascii():
        return "invalid_request", "The program does not protect its code (PKCE with S256)."
    if not is_resource:
        return "invalid_target", "The program asks for access to something else than this server."
    # More than the one scope does not exist.
    if not set(given.get("scope", "").split()) <= {SCOPE}:
        return "invalid_scope", "The program asks for more than there is."
    return None


def _is_safe(uri: str) -> bool:
    """Return whether a browser may be sent there: over TLS, to this machine, or to a program by its own reversed name."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return False
    # Parsers disagree about such addresses.
    if not uri.isascii() or not uri.isprintable() or parts.fragment or "#" in uri or " " in uri or "\\" in uri:
        return False
    if parts.scheme == "https":
        # A user in an address hides where it leads.
        return bool(parts.hostname) and parts.username is None
    if parts.scheme == "http":
        return is_loopback(parts.hostname or "") and parts.username is None
    return "." in parts.scheme  # RFC 8252, 7.1


def _answer(uri: str, issuer: str, state: str | None, **told: str) -> str:
    return construct_redirect_uri(uri, **told, state=state, iss=issuer)


def _base_of(request: Request) -> str:
    return _base(request.scope, request.headers.get("host", ""))


def _base(scope: Scope, host: str) -> str:
    return f"{scope['scheme']}://{host.lower()}"


async def _in_full(request: Request) -> Request:
    """Return a request with its whole body, which is small.

    Raises:
        TooLarge: It is not.
    """
    content = await whole_body(request)

    async def receive() -> Message:
        return {"type": "http.request", "body": content, "more_body": False}

    return Request(request.scope, receive)


def _keep_newest(entries: OrderedDict[str, Any]) -> None:
    while len(entries) > _MOST_PENDING:
        entries.popitem(last=False)
