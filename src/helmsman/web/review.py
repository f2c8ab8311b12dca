"""Routes for reviewing a session's changes: show, apply or discard them."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
from pydantic import Field

from helmsman.base.json_values import present
from helmsman.capabilities.publishing import verified
from helmsman.capabilities.saved_prompts import saved_prompts
from helmsman.errors import ConfirmationNeeded, HelmsmanError, InvalidInput, WorktreeError
from helmsman.git.command import find_git
from helmsman.git.diff import read_diff
from helmsman.git.patches import diff_digest
from helmsman.git.tree_changes import DiffView, Unsaved, marks_of
from helmsman.shapes.contract import Input
from helmsman.shapes.rendering import applied_as_dict, fields_as_dict, json_line
from helmsman.shapes.safe_values import safe, shown_files
from helmsman.web.json_http import Routes, route, session_id, switch, text

if TYPE_CHECKING:
    from starlette.requests import Request

    from helmsman.service import HelmsmanService
    from helmsman.sessions.session import Session

_DIFF_CHARS: Final = 4 * 1024 * 1024
# A user looks back and forth between a few versions.
_KEPT: Final = 8
_TOO_LONG: Final = "It is too long for this page. Look at all of it and apply it in a terminal: helmsman apply {}"


class ApplyShownInput(Input):
    digest: str
    allow_dirty: bool = False
    only: dict[str, list[int] | None] | None = None


class DiscardPartInput(Input):
    digest: str
    only: dict[str, list[int] | None] = Field(min_length=1)


class DiscardShownInput(Input):
    losing: str


class ReviewRoutes(Routes):
    """Shows changes, applies and drops them."""

    def __init__(self, helm: HelmsmanService) -> None:
        super().__init__(helm)
        self._coloured: OrderedDict[str, dict[str, Any]] = OrderedDict()

    @route("/api/sessions/{session_id}/diff")
    async def diff(self, request: Request) -> dict[str, Any]:
        session = await self._helm.session(session_id(request))
        tree, since = session.worktree, _time(text(request, "since"))
        view = DiffView(ignore_whitespace=switch(request, "ignoreWhitespace"))
        # A view leaves something out, so it cannot be applied.
        is_view = tree is not None and (since is not None or view.ignore_whitespace)
        now = datetime.now(UTC)
        try:
            if is_view:
                changed, patch = await self._helm.extras.changes.view(session.id, view, since=since)
            else:
                changed = await self._helm.extras.changes.diff(session.id)
                patch = changed.diff.text
        except (InvalidInput, WorktreeError) as unknown:  # outside of git, or its directory is gone
            return {"files": [], "about": safe(unknown.message)}
        # The page has exactly this diff and need not load it again.
        if text(request, "unless") == changed.diff.digest:
            return {"digest": changed.diff.digest, "unchanged": True}
        left_out = filter(
            None,
            (
                "It shows only what was changed since your review." if since is not None else None,
                "Changes of white space are left out." if view.ignore_whitespace else None,
                "Show all changes to apply them.",
            ),
        )
        about = {
            "at": now.isoformat(),
            "scope": changed.scope,
            "about": " ".join((changed.about, *left_out)) if is_view else changed.about,
            "digest": changed.diff.digest,
            "marks": await anyio.to_thread.run_sync(marks_of, changed.diff.patch),
            "nested": safe(list(changed.diff.nested)) or None,
            "root": await anyio.to_thread.run_sync(self._root, session),
            "repository": None if tree is None else str(tree.repository),
            "canApply": tree is not None and not is_view,
        }
        shown = await self.files(changed.diff.digest if not is_view else diff_digest(patch.encode()), patch)
        if "cut" in shown:
            # What is cut was not seen, and so cannot be applied here.
            about |= {"about": f"{changed.about} {_TOO_LONG.format(session.id)}", "canApply": False}
        return present(about) | shown

    @route("/api/sessions/{session_id}/diff/file")
    async def whole_file(self, request: Request) -> dict[str, Any]:
        """Return a changed file with all its lines, for reading around the changes."""
        session = await self._helm.session(session_id(request))
        paths = tuple(filter(None, (text(request, "path"), text(request, "oldPath"))))
        changed, patch = await self._helm.extras.changes.view(session.id, DiffView(whole=paths))
        # Lines around a change must be of the same version as the change.
        if changed.diff.digest != text(request, "digest"):
            raise InvalidInput("The changes have moved on. Look at them again.", parameter="digest")
        read = await self.files(diff_digest(patch.encode()), patch)
        found = next((file for file in read["files"] if file["path"] == paths[0]), None) if paths else None
        if found is None or "missing" in found:
            raise InvalidInput("This file cannot be shown as a whole. Open it in an editor.", parameter="path")
        return {"lines": found["lines"]}

    async def files(self, digest: str, diff: str) -> dict[str, Any]:
        """Return the highlighted files of a diff. Cached, because highlighting is slow."""
        shown = self._coloured.get(digest)
        if shown is None:
            shown = self._coloured[digest] = await anyio.to_thread.run_sync(coloured_diff, diff)
        # The one that was just read is the last to be dropped.
        self._coloured.move_to_end(digest)
        while len(self._coloured) > _KEPT:
            self._coloured.popitem(last=False)
        return shown

    @route("/api/sessions/{session_id}/apply", ApplyShownInput)
    async def apply(self, request: Request, given: ApplyShownInput) -> dict[str, Any]:
        session = await self._helm.session(session_id(request))
        # A change that the page did not show in full must not be applied from it.
        if "cut" in self._coloured.get(given.digest, ()):
            raise ConfirmationNeeded(_TOO_LONG.format(session.id))
        applied = await self._helm.extras.changes.apply(
            session.id, digest=given.digest, allow_dirty=given.allow_dirty, only=given.only
        )
        return dict(safe(applied_as_dict(applied)))

    @route("/api/sessions/{session_id}/discard-part", DiscardPartInput)
    async def discard_part(self, request: Request, given: DiscardPartInput) -> dict[str, Any]:
        session = await self._helm.session(session_id(request))
        files = await self._helm.extras.changes.discard_part(session.id, given.only, digest=given.digest)
        return {"files": safe([fields_as_dict(file) for file in files])}

    @route("/api/sessions/{session_id}/unsaved")
    async def unsaved(self, request: Request) -> dict[str, Any]:
        session = await self._helm.session(session_id(request))
        return _as_dict(await self._helm.extras.changes.unsaved(session.id))

    @route("/api/sessions/{session_id}/discard", DiscardShownInput)
    async def discard(self, request: Request, given: DiscardShownInput) -> dict[str, Any]:
        session = await self._helm.session(session_id(request))
        losing = await self._helm.extras.changes.unsaved(session.id)
        # New work since the preview would be lost without having been seen.
        if _as_dict(losing)["key"] != given.losing:
            raise InvalidInput("There is other work in the worktree than was shown. Nothing was dropped; look again.")
        gone = await self._helm.extras.changes.discard(session.id, losing=losing)
        return present({"worktree": str(gone.worktree.path), "branchKept": gone.branch_kept or None})

    def _root(self, session: Session) -> str | None:
        """Return the root of the diff's paths, or None outside of git. Blocks."""
        if session.worktree is not None:
            return None if session.worktree.others else str(session.worktree.path)
        if session.directory is None or not Path(session.directory).is_dir():
            return None
        git = find_git(Path(session.directory), self._helm.settings.state_dir)
        return None if git is None else str(git.work_tree)


def _time(given: str | None) -> datetime | None:
    if given is None:
        return None
    try:
        time = datetime.fromisoformat(given)
    except ValueError:
        time = None
    # Without an offset, the time would be that of the server's zone.
    if time is None or time.tzinfo is None:
        raise InvalidInput(f"since cannot be {given!r:.40}. Use a time with an offset.", parameter="since")
    return time


def coloured_diff(diff: str) -> dict[str, Any]:
    """Return a diff for the page: `files`, and `cut` if they do not all fit. Blocks."""
    from helmsman.web.colours import colour_files

    files, missing = shown_files(read_diff(diff), _DIFF_CHARS)
    colour_files(files)
    return present({"files": files, "cut": missing or None})


def _as_dict(losing: Unsaved) -> dict[str, Any]:
    shown: dict[str, Any] = safe(fields_as_dict(losing))
    # Over what was shown, so that the confirmation is about exactly that.
    return shown | {"key": hashlib.sha256(json_line(shown).encode()).hexdigest()}


# --- Routes from a session to a commit and a pull request, and the user's saved prompts -------------------------------


class CommitInput(Input):
    message: str
    digest: str


class PullRequestInput(Input):
    title: str
    text: str = ""
    base: str | None = None
    draft: bool = False
    allow: list[str] = Field([], description="The addresses that the user has allowed pushing to, for this session.")


class PublishingRoutes(Routes):
    """Answers requests about commits, pull requests and saved prompts."""

    @route("/api/sessions/{session_id}/publishing")
    async def look(self, request: Request) -> dict[str, Any]:
        publishing = self._helm.extras.publishing
        looked = await publishing.look(session_id(request))
        shown: dict[str, Any] = {
            "directory": safe(", ".join(map(str, looked.directories))),
            "branch": ", ".join(looked.branches) or None,
            "files": len(looked.files),
            "digest": looked.digest,
            "isCommitted": looked.is_committed,
            "title": safe(looked.title),
            "text": safe(looked.text),
        }
        # A session can be committed although nothing can be published.
        try:
            targets = await publishing.targets(looked.session_id)
        except HelmsmanError as error:
            return present(shown | {"cannotPublish": safe(error.message)})
        publication = (await self._helm.session(looked.session_id)).state.publication
        shown |= {
            "targets": [
                present(
                    {
                        "url": safe(one.url),
                        "branch": one.branch,
                        "base": one.base,
                        "repository": one.repository,
                        "opensPullRequest": one.by is not None,
                        "isAllowed": one.is_allowed,
                        "commits": list(map(safe, one.commits)),
                    }
                )
                for one in targets
            ],
            "pullRequests": list(publication.pull_requests),
            "issue": publication.issue,
        }
        return present(shown)

    @route("/api/sessions/{session_id}/commit", CommitInput)
    async def commit(self, request: Request, given: CommitInput) -> dict[str, Any]:
        made = await self._helm.extras.publishing.commit(session_id(request), given.message, digest=given.digest)
        return {"commits": [{"commit": one.commit, "branch": one.branch} for one in made]}

    @route("/api/sessions/{session_id}/pull-request", PullRequestInput)
    async def pull_request(self, request: Request, given: PullRequestInput) -> dict[str, Any]:
        publishing, known = self._helm.extras.publishing, session_id(request)
        targets = await publishing.targets(known, base=given.base)
        if not targets:
            raise InvalidInput("There is nothing to publish: the session's branch has no commit of its own.")
        # The addresses that the user saw: another remote in between is not allowed.
        for url in {target.url for target in targets} & set(given.allow):
            await publishing.allow(known, url)
        await publishing.push(known, targets)
        text = "\n\n".join(filter(None, (given.text.strip(), verified(await self._helm.session(known)))))
        published: list[dict[str, Any]] = []
        for target in targets:
            # Without the forge's program the branch is pushed only.
            opened = (
                None
                if target.by is None
                else await publishing.open(known, target, given.title, text, draft=given.draft)
            )
            published.append(present({"url": opened, "branch": target.branch, "remote": safe(target.url)}))
        return {"published": published}

    @route("/api/prompts")
    async def prompts(self, _request: Request) -> dict[str, Any]:
        found = await anyio.to_thread.run_sync(saved_prompts)
        shown = [{"name": one.name, "title": safe(one.title), "text": one.text} for one in found.values()]
        return {"prompts": shown}
