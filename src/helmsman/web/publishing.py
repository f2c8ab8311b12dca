"""Routes from a session to a commit and a pull request, and the user's saved prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio.to_thread
from pydantic import Field

from helmsman.base.json_values import present
from helmsman.capabilities.publishing import verified
from helmsman.capabilities.saved_prompts import saved_prompts
from helmsman.errors import HelmsmanError
from helmsman.shapes.contract import Input
from helmsman.shapes.safe_values import safe
from helmsman.web.json_http import body, session_id

if TYPE_CHECKING:
    from starlette.requests import Request

    from helmsman.service import HelmsmanService


class CommitInput(Input):
    message: str
    digest: str


class PullRequestInput(Input):
    title: str
    text: str = ""
    base: str | None = None
    draft: bool = False
    allow: str = Field("", description="The address that the user has allowed pushing to, for this session.")


class PublishingRoutes:
    """Answers them."""

    def __init__(self, helm: HelmsmanService) -> None:
        self._helm = helm

    async def look(self, request: Request) -> dict[str, Any]:
        publishing = self._helm.extras.publishing
        looked = await publishing.look(session_id(request))
        shown: dict[str, Any] = {
            "directory": safe(str(looked.directory)),
            "branch": looked.branch,
            "files": len(looked.files),
            "digest": looked.digest,
            "isCommitted": looked.is_committed,
            "title": safe(looked.title),
            "text": safe(looked.text),
        }
        try:
            target = await publishing.target(looked.session_id)
        except HelmsmanError as error:
            return present(shown | {"cannotPublish": safe(error.message)})
        publication = (await self._helm.session(looked.session_id)).state.publication
        shown |= {
            "target": present(
                {
                    "url": safe(target.url),
                    "branch": target.branch,
                    "base": target.base,
                    "repository": target.repository,
                    "opensPullRequest": target.by is not None,
                    "isAllowed": target.is_allowed,
                    "commits": list(map(safe, target.commits)),
                }
            ),
            "pullRequest": publication.pull_request,
            "issue": publication.issue,
        }
        return present(shown)

    async def commit(self, request: Request) -> dict[str, Any]:
        given = await body(request, CommitInput)
        made = await self._helm.extras.publishing.commit(session_id(request), given.message, digest=given.digest)
        return {"commit": made.commit, "branch": made.branch, "title": safe(made.title)}

    async def pull_request(self, request: Request) -> dict[str, Any]:
        given = await body(request, PullRequestInput)
        publishing, known = self._helm.extras.publishing, session_id(request)
        target = await publishing.target(known, base=given.base)
        if given.allow == target.url:
            await publishing.allow(known, target.url)
        await publishing.push(known, target)
        opened = None
        if target.by is not None:
            text = "\n\n".join(filter(None, (given.text.strip(), verified(await self._helm.session(known)))))
            opened = await publishing.open(known, target, given.title, text, draft=given.draft)
        return present({"url": opened, "branch": target.branch, "remote": safe(target.url)})

    async def prompts(self, _request: Request) -> dict[str, Any]:
        found = await anyio.to_thread.run_sync(saved_prompts)
        shown = [{"name": one.name, "title": safe(one.title), "text": one.text} for one in found.values()]
        return {"prompts": shown}
