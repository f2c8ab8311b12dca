"""Routes that change something: say, steer, interrupt, answer, cancel."""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
from pydantic import Field

from helmsman.approvals.deadline import LEASE_SECONDS
from helmsman.approvals.rule_book import rule_as_toml, rule_of_person
from helmsman.base.caller_context import expand_home, from_here
from helmsman.base.files import is_inside
from helmsman.base.json_values import iso_time, present
from helmsman.base.sanitize import visible
from helmsman.capabilities.outcomes.agent_selection import selected_agents
from helmsman.capabilities.rewinding import Rewind, RewindPart
from helmsman.errors import HelmsmanError, InvalidInput, InvalidSetting, TaskNotFound
from helmsman.git.worktree import all_records
from helmsman.model.answered_by import PERSON_IN_DASHBOARD, AnsweredBy
from helmsman.model.rules import Effect
from helmsman.operations.program_call import ProgramCall
from helmsman.operations.table import Deferred, Operation
from helmsman.settings import ensure_state_dir
from helmsman.shapes.contract import FleetStartInput, Input, NothingInput
from helmsman.shapes.outcomes import INPUTS
from helmsman.shapes.rendering import fields_as_dict, task_as_dict
from helmsman.shapes.rewinds import rewind_as_dict, rewind_in_words
from helmsman.shapes.safe_values import safe
from helmsman.shapes.schedules import NewScheduleInput, run_as_dict, schedule_as_dict
from helmsman.shapes.session_status import started
from helmsman.steering.opening import PICTURES
from helmsman.web.json_http import Endpoint, NotFound, Routes, TooLarge, body, respond, route, session_id, text
from helmsman.web.proof import CODE_PATH, PROOF_PATH, Challenges, place
from helmsman.web.review import coloured_diff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.requests import Request
    from starlette.responses import Response

    from helmsman.approvals.policy import Ruling
    from helmsman.approvals.rule_book import ListedRule
    from helmsman.schedules.store import ScheduleRun
    from helmsman.service import HelmsmanService
    from helmsman.sessions.session import Session
    from helmsman.web.live import Live
    from helmsman.web.login import Logins


# --- Routes for schedules ---------------------------------------------------------------------------------------------


class ScheduleRoutes(Routes):
    """Answers requests about schedules."""

    @route("/api/schedules")
    async def listed(self, _request: Request) -> dict[str, Any]:
        return {"schedules": [schedule_as_dict(one) for one in await self._helm.extras.schedules.list()]}

    @route("/api/schedules/{schedule_id}")
    async def shown(self, request: Request) -> dict[str, Any]:
        schedules = self._helm.extras.schedules
        schedule = await schedules.get(_which(request))
        runs = [await self._run(run) for run in await schedules.runs(schedule.id)]
        return schedule_as_dict(schedule) | {"runs": runs}

    async def _run(self, run: ScheduleRun) -> dict[str, Any]:
        shown = run_as_dict(run)
        if run.task_id is None:
            return shown
        try:
            task = await self._helm.tasks.get(run.task_id)
        except TaskNotFound:
            # The task has expired; the run itself is still shown.
            return shown
        return shown | {"task": task_as_dict(task, self._helm.task_writer)}

    @route("/api/schedules", NewScheduleInput, status=201)
    async def add(self, request: Request, given: NewScheduleInput) -> dict[str, Any]:
        agent = self._helm.settings.default_agent
        return schedule_as_dict(await self._helm.extras.schedules.add(given.prompt, **given.options(agent)))

    @route("/api/schedules/{schedule_id}/{verb}", NothingInput)
    async def change(self, request: Request, _given: NothingInput) -> dict[str, Any]:
        schedules, which = self._helm.extras.schedules, _which(request)
        match request.path_params["verb"]:
            case "pause" | "resume" | "confirm" as verb:
                return schedule_as_dict(await getattr(schedules, verb)(which))
            case "run":
                return {"task": task_as_dict(await schedules.run_now(which), self._helm.task_writer)}
            case "remove":
                return {"removed": schedule_as_dict(await schedules.remove(which))}
            case verb:
                raise NotFound(f"A schedule cannot be told to {verb!r:.40}.")


def _which(request: Request) -> str:
    return str(request.path_params["schedule_id"])


# --- Routes for rules: list them, find the one that decides a command, and revoke one that an answer added ------------


class ExplainInput(Input):
    command: str = Field(min_length=1)
    directory: str = Field(min_length=1)
    inside: bool = False


class AddRuleInput(Input):
    """Rule that a person wants. `toml` is the rule as it was shown; without it, nothing is added."""

    effect: Effect
    command: str = Field(min_length=1)
    directory: str = Field(min_length=1)
    outside: bool = False
    toml: str | None = None


class Rules(Routes):
    """Answers requests about rules."""

    def __init__(self, helm: HelmsmanService) -> None:
        self._book = helm.rules

    @route("/api/rules")
    async def listed(self, request: Request) -> dict[str, Any]:
        return await anyio.to_thread.run_sync(self._listed, _directory_of_rules(text(request, "directory")))

    def _listed(self, directory: Path | None) -> dict[str, Any]:
        # A broken file is a problem to show beside the rules, not instead of them.
        problem: str | None = None
        try:
            self._book.check(directory)
        except InvalidSetting as error:
            problem = error.message
        rules = [_shown(rule) for rule in self._book.listed(directory)]
        return present({"rules": rules, "ownFile": str(self._book.permanent_path), "problem": problem})

    @route("/api/rules/explain", ExplainInput)
    async def explain(self, request: Request, given: ExplainInput) -> dict[str, Any]:
        directory = _directory_of_rules(given.directory)
        assert directory is not None
        return await anyio.to_thread.run_sync(self._explain, given.command, directory, given.inside)

    def _explain(self, command: str, directory: Path, inside: bool) -> dict[str, Any]:
        decision: Ruling = self._book.explain(command, directory, inside=inside)
        rule = next((one for one in self._book.listed(directory) if one.rule == decision.rule), None)
        shown = None if rule is None else _shown(rule)
        return present({"effect": decision.effect, "reason": visible(decision.reason), "rule": shown})

    @route("/api/rules/add", AddRuleInput)
    async def add(self, request: Request, given: AddRuleInput) -> dict[str, Any]:
        """Add exactly the rule that was shown; show it first."""
        return await anyio.to_thread.run_sync(self._add, given)

    def _add(self, given: AddRuleInput) -> dict[str, Any]:
        directory = _directory_of_rules(given.directory)
        assert directory is not None
        # Rules that deny or ask apply everywhere, so `outside` has no meaning for them.
        outside = given.outside and given.effect == "allow"
        rule = rule_of_person(given.effect, given.command, directory.resolve(), outside=outside)
        shown = visible(rule_as_toml(rule))
        if given.toml is None:
            return {"toml": shown}
        # Exactly the rule that the user saw is added: the page sends its text back.
        if given.toml != shown:
            raise InvalidInput("This is not the rule that was shown. Look at it again.", parameter="toml")
        return present({"added": self._book.add(rule)})

    @route("/api/rules/{rule_id}/confirm", NothingInput)
    async def confirm(self, request: Request, _given: NothingInput) -> dict[str, Any]:
        return {"confirmed": await self._changed(request, self._book.confirm)}

    @route("/api/rules/{rule_id}/remove", NothingInput)
    async def remove(self, request: Request, _given: NothingInput) -> dict[str, Any]:
        return {"removed": await self._changed(request, self._book.remove)}

    async def _changed(self, request: Request, change: Callable[[str], ListedRule]) -> dict[str, Any]:
        return _shown(await anyio.to_thread.run_sync(change, str(request.path_params["rule_id"])))


def _directory_of_rules(directory: str | None) -> Path | None:
    if directory is None:
        return None
    path = expand_home(directory)
    # The browser knows no current directory.
    if not path.is_absolute():
        raise InvalidInput(
            f"directory cannot be {directory!r:.80}. Write the whole path, from / or ~ on.", parameter="directory"
        )
    return path


def _shown(rule: ListedRule) -> dict[str, Any]:
    shown = {name: visible(value) if isinstance(value, str) else value for name, value in rule.as_dict().items()}
    return present({name: value for name, value in shown.items() if value is not False})


# --- Routes of a rewind: preview and execution ------------------------------------------------------------------------


class ShownRewindInput(Input):
    to: int | str | None = None
    part: RewindPart | None = None
    undo: bool = False


class DoneRewindInput(ShownRewindInput):
    digest: str


class RewindRoutes(Routes):
    """Shows rewinds, and does them."""

    @route("/api/sessions/{session_id}/rewind")
    async def show(self, request: Request) -> dict[str, Any]:
        given = ShownRewindInput.read(dict(request.query_params), whole="query")
        preview = await self._helm.extras.rewinding.preview(
            session_id(request), to=given.to, part=given.part, undo=given.undo
        )
        return _told(preview, done=False)

    @route("/api/sessions/{session_id}/rewind", DoneRewindInput)
    async def do(self, request: Request, given: DoneRewindInput) -> dict[str, Any]:
        done = await self._helm.extras.rewinding.rewind(
            session_id(request), digest=given.digest, to=given.to, part=given.part, undo=given.undo
        )
        return _told(done, done=True)


def _told(rewind: Rewind, *, done: bool) -> dict[str, Any]:
    shown = rewind_as_dict(rewind, done=done)
    told: dict[str, Any] = safe({**shown, "lines": rewind_in_words(shown)})
    # The lines say what changes, so the page needs no diff.
    told.pop("diff", None)
    return told


# --- Routes of the form for a new session: models, directories, images, effective configuration; and its start --------

IMAGE_BYTES: Final = 8 * 1024 * 1024
_KEPT_SECONDS: Final = 7 * 24 * 3600.0
"""Lifetime of images, which queued messages still need. The agent keeps those that it was shown."""
_DIRECTORIES: Final = 50
_LOOKED_AT: Final = 10_000
# By content: names and types that a browser sends prove nothing.
_KINDS: Final = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpg", b"GIF87a": "gif", b"GIF89a": "gif"}


class NewSessionInput(FleetStartInput):
    agent: str | None = None
    unenforced: bool = False


class ImageInput(Input):
    data: str


class NewSessions(Routes):
    """Answers requests of the form for a new session."""

    @route("/api/sessions", NewSessionInput, status=201)
    async def start(self, request: Request, given: NewSessionInput) -> dict[str, Any]:
        await anyio.to_thread.run_sync(self._refuse_taken, given.working_directory or ".")
        return started(await self._helm.start(given.prompt, **given.options())).as_dict()

    def _refuse_taken(self, directory: str) -> None:
        """Refuse the worktree of another session: its changes would be applied or discarded together with that
        session's.
        """
        place = from_here(directory).absolute()
        # Also worktrees of sessions that are not open here.
        for tree in all_records(self._helm.settings.state_dir):
            if tree.session_id is not None and is_inside(place, [tree.path.resolve()]):
                raise InvalidInput(
                    f"{place} is the worktree of session {tree.session_id}. Send that session a message, or begin in "
                    f"{tree.repository}.",
                    parameter="workingDirectory",
                )

    @route("/api/models")
    async def models(self, request: Request) -> dict[str, Any]:
        models = await self._helm.extras.account.models(text(request, "agent"))
        return {"models": safe([fields_as_dict(model) for model in models])}

    @route("/api/in-force")
    async def in_force(self, request: Request) -> dict[str, Any]:
        directory = text(request, "directory")
        if directory is None:
            raise InvalidInput("directory is missing. Say where the session is to work.", parameter="directory")
        agent = text(request, "agent")
        return dict(safe(present(fields_as_dict(await self._helm.extras.configuration.in_force(directory, agent)))))

    @route("/api/directories")
    async def directories(self, request: Request) -> dict[str, Any]:
        return {"directories": await anyio.to_thread.run_sync(self._directories, text(request, "begins") or "")}

    def _directories(self, begins: str) -> list[str]:
        """Return the completions of a path. Nothing outside the allowed roots is listed."""
        roots = self._helm.settings.allowed_roots
        path = from_here(begins) if begins.startswith("~") else Path(begins)
        if not path.is_absolute() or "\0" in begins:
            # The user has not typed a path yet.
            return [str(root) for root in roots][:_DIRECTORIES]
        parent, name = (path, "") if begins.endswith(os.sep) else (path.parent, path.name)
        # Roots that this may still become are offered, and nothing else.
        if roots and not is_inside(parent, roots):
            return [str(root) for root in roots if str(root).startswith(str(path))][:_DIRECTORIES]
        return sorted(_below(parent, name))[:_DIRECTORIES]

    @route("/api/images", ImageInput, status=201)
    async def image(self, request: Request, given: ImageInput) -> dict[str, Any]:
        return {"path": await anyio.to_thread.run_sync(self._keep, given.data)}

    def _keep(self, data: str) -> str:
        try:
            # The default would skip characters that are not base64.
            content = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidInput("data is no base64. Send the bytes of an image.", parameter="data") from None
        if len(content) > IMAGE_BYTES:
            raise TooLarge(f"The image is larger than {IMAGE_BYTES // 1024**2} MiB. Send a smaller one.")
        kind = next((kind for mark, kind in _KINDS.items() if content.startswith(mark)), None)
        # WebP has its size between the two marks.
        if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
            kind = "webp"
        if kind is None:
            raise InvalidInput("This is no PNG, JPEG, GIF or WebP. Send an image of these types.", parameter="data")
        folder = ensure_state_dir(self._helm.settings.state_dir) / PICTURES
        folder.mkdir(mode=0o700, exist_ok=True)
        # Cleaned up at each new image, so no timer is needed.
        for old in folder.iterdir():
            if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
                old.unlink(missing_ok=True)
        path = folder / f"{secrets.token_hex(16)}.{kind}"
        # A new private file: pictures are the user's own.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        return str(path)


def _below(parent: Path, name: str) -> Iterator[str]:
    """Yield the directories whose names have this prefix, hidden ones only if it begins with a dot."""
    try:
        with os.scandir(parent) as entries:
            # A directory may have millions of entries.
            for _, entry in zip(range(_LOOKED_AT), entries, strict=False):
                is_hidden = entry.name.startswith(".") and not name.startswith(".")
                # A name with control characters could imitate another one.
                if entry.name.startswith(name) and not is_hidden and entry.is_dir() and entry.name.isprintable():
                    yield entry.path
    except OSError:
        return


# --- Routes of jobs: start one, and show its outcome with the evidence ------------------------------------------------


class JobRoutes(Routes):
    """Begins jobs, and shows them."""

    @route("/api/jobs/{kind}", method="POST", status=201)
    async def begin(self, request: Request) -> dict[str, Any]:
        kind: str = request.path_params["kind"]
        if kind not in INPUTS:
            raise NotFound(f"There is no outcome {kind}. Use one of: {', '.join(INPUTS)}.")
        given = await body(request, INPUTS[kind])
        # Following is at /api/tasks: a request must not hang for minutes.
        if given.task_id is not None or given.wait_sec is not None or given.timeout_sec is not None:
            raise InvalidInput("Begin one here; its task is at /api/tasks.", parameter="taskId")
        task = await self._helm.extras.outcomes.start(given.wanted(), idempotency_key=given.idempotency_key)
        chosen, *_ = selected_agents(task)
        return {"taskId": task.id, "status": task.status, "agent": chosen.agent, "why": safe(chosen.why)}

    @route("/api/tasks/{task_id}/report")
    async def shown(self, request: Request) -> dict[str, Any]:
        task = await self._helm.tasks.get(request.path_params["task_id"])
        if task.job is None:
            raise NotFound(f"{task.id} is no job, but a turn of a session. Look there.")
        results = await self._helm.tasks.results(task)
        # Highlighting takes long, so it runs on a thread.
        change = await anyio.to_thread.run_sync(coloured_diff, results.diff or "")
        return {
            "task": safe(task_as_dict(results.task, self._helm.task_writer)),
            "sessions": list(task.job_sessions),
            **present({"report": safe(results.report), "files": change["files"] or None, "cut": change.get("cut")}),
        }


# --- Routes for login and logout: a code for a cookie, a proof for a code ---------------------------------------------


class DeviceInput(Input):
    """Browser that wants to be remembered: its public key, as SPKI in base64."""

    name: str = Field(max_length=200)
    key: str = Field(max_length=400)


class LoginInput(Input):
    code: str = Field(max_length=200)
    device: DeviceInput | None = None


class NewCodeInput(Input):
    """`address` is that of the page, for a QR code that opens it logged in."""

    address: str | None = Field(default=None, max_length=500)


class ProofInput(Input):
    nonce: str = Field(min_length=20, max_length=200)


class CodeInput(ProofInput):
    challenge: str = Field(max_length=400)
    proof: str = Field(max_length=200)


class WrongCode(HelmsmanError):
    """Code was used, has expired, or never existed."""


class WrongProof(HelmsmanError):
    """Proof does not show that its sender has the token."""


class LoginRoutes(Routes):
    """Answers requests to log in and to log out."""

    def __init__(self, logins: Logins, challenges: Challenges) -> None:
        self._logins = logins
        self._challenges = challenges

    @route("/api/login", LoginInput)
    async def log_in(self, request: Request, given: LoginInput) -> Response:
        if not self._logins.redeem(given.code):
            raise WrongCode(
                "This code is wrong, has expired or was used already. `helmsman dashboard --server URL` prints a new one."
            )
        # Without an origin the browser could not be recognized later.
        book, origin = self._logins.devices, request.headers.get("origin")
        device = None
        if given.device is not None and book is not None and origin is not None:
            # A device is known only at the address and the port where it was added.
            port = request.scope["server"][1]
            add = partial(book.add, given.device.name, given.device.key, origin=origin, port=port)
            device = await anyio.to_thread.run_sync(add)
        response = respond({"ok": True} if device is None else {"ok": True, "device": device.id})
        self._logins.log_in(request.scope, response, device)
        return response

    @route("/api/logout", NothingInput)
    async def log_out(self, request: Request, _given: NothingInput) -> Response:
        response = respond({"ok": True})
        device, book = self._logins.device_of(request.scope, request.headers), self._logins.devices
        if device is not None and book is not None:
            # Revoking the device also ends its other cookies.
            await anyio.to_thread.run_sync(book.revoke, device)
        self._logins.log_out(request.scope, request.headers, response)
        return response

    @route("/api/codes", NewCodeInput)
    async def new_code(self, request: Request, given: NewCodeInput) -> dict[str, Any]:
        code = self._code()
        if given.address is None:
            return code
        import segno  # few hubs need it

        return {**code, "qr": segno.make(given.address + str(code["path"])[1:]).svg_data_uri(border=2, scale=4)}

    @route(PROOF_PATH, ProofInput)
    async def prove(self, request: Request, given: ProofInput) -> dict[str, Any]:
        challenge, proof = self._challenges.answer(given.nonce, _place(request))
        return {"challenge": challenge, "proof": proof}

    @route(CODE_PATH, CodeInput)
    async def new_code_for_proof(self, request: Request, given: CodeInput) -> dict[str, Any]:
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
    """Return our end of the connection. The Host header is only what the client says."""
    host, port = request.scope["server"]
    return place(host, port)


class SteerInput(Input):
    message: str


class AnswersInput(Input):
    answers: list[str]


class ShownInput(Input):
    page: str = Field(max_length=64)
    questions: list[str] = Field(default_factory=list[str], max_length=1000)
    sessions: list[str] = Field(default_factory=list[str], max_length=1000)
    hidden: list[str] = Field(default_factory=list[str], max_length=1000)


class CancelInput(Input):
    reason: str | None = None


class ResumeInput(Input):
    at: str | None = None


class Acting(Routes):
    """Answers requests that change something."""

    # --- sessions ----------------------------------------------------------------------------------------------------

    @route("/api/sessions/{session_id}/steer", SteerInput)
    async def steer(self, request: Request, given: SteerInput) -> dict[str, Any]:
        await self._helm.steer(session_id(request), given.message)
        return state_of(await self._helm.session(session_id(request)))

    @route("/api/sessions/{session_id}/questions/{question_id}", AnswersInput)
    async def answer(self, request: Request, given: AnswersInput) -> dict[str, Any]:
        question_id: str = request.path_params["question_id"]
        return state_of(await self._helm.respond(session_id(request), question_id, given.answers, by=_by(request)))

    @route("/api/shown", ShownInput)
    async def shown(self, request: Request, given: ShownInput) -> dict[str, Any]:
        """Record which questions a page shows. Their deadlines are paused for the length of a lease."""
        viewer = f"page {given.page}"
        told: list[dict[str, Any]] = []
        # A copy, because sessions may open and close while the page reports.
        for session in list(self._helm.sessions.values()):
            if session.id in given.sessions:
                session.shown_for(LEASE_SECONDS)
            elif session.id in given.hidden:
                session.shown_for(0)
            for question_id, deadline in list(session.deadlines.items()):
                if question_id in given.questions:
                    deadline.lease(viewer)
                elif question_id in given.hidden:
                    deadline.release(viewer)
                else:
                    # Questions that are neither shown nor hidden by this page are another page's.
                    continue
                told.append({"id": question_id, "deadline": deadline.as_dict()})
        return {"questions": told}

    @route("/api/notices/{notice_id}/shown", NothingInput)
    async def notice_shown(self, request: Request, _given: NothingInput) -> dict[str, Any]:
        await self._helm.extras.notices.shown(request.path_params["notice_id"])
        return {"ok": True}

    # --- tasks -------------------------------------------------------------------------------------------------------

    @route("/api/tasks/{task_id}/cancel", CancelInput)
    async def cancel(self, request: Request, given: CancelInput) -> dict[str, Any]:
        task = await self._helm.tasks.get(request.path_params["task_id"])
        task, message = await self._helm.tasks.cancel(task, reason=given.reason)
        return {"task": task_as_dict(task, self._helm.task_writer), "message": message}

    @route("/api/tasks/{task_id}/resume", ResumeInput)
    async def resume(self, request: Request, given: ResumeInput) -> dict[str, Any]:
        task = await self._helm.tasks.get(request.path_params["task_id"])
        resumed = await self._helm.extras.limits.go_on(task, given.at)
        return {"task": task_as_dict(resumed, self._helm.task_writer)}


def _by(request: Request) -> AnsweredBy:
    """Return who answers: a user with a login, or a program with the token."""
    # A token belongs to programs, a cookie to the user's browser.
    return AnsweredBy("program", via="api") if "authorization" in request.headers else PERSON_IN_DASHBOARD


def state_of(session: Session) -> dict[str, Any]:
    """Return the result of an action on a session."""
    return {"sessionId": session.id, "status": session.status}


# --- Routes of a session's menu: hand over, review, label, and operations on a session ----------------------


class HandBody(Input):
    to: str | None = None


class ReviewBody(Input):
    instructions: str | None = None


class SessionsInput(Input):
    sessions: list[str] = Field(min_length=1, max_length=200)


class LabelsInput(SessionsInput):
    add: list[str] = Field(default_factory=list[str], max_length=20)
    remove: list[str] = Field(default_factory=list[str], max_length=20)


class UpkeepRoutes(Routes):
    """Endpoints of the session menu.

    An action that an agent does not support is refused with a list of agents that do (409 unsupported).
    """

    def __init__(self, helm: HelmsmanService, live: Live) -> None:
        super().__init__(helm)
        self._live = live

    @route("/api/sessions/{session_id}/hand", HandBody)
    async def hand(self, request: Request, given: HandBody) -> dict[str, Any]:
        session = await self._helm.hand(session_id(request), given.to)
        self._live.mark(session.id, ["details"])
        owner = session.opened_by
        return present({"sessionId": session.id, "client": None if owner is None else owner.title})

    @route("/api/archive", SessionsInput)
    async def archive_several(self, request: Request, given: SessionsInput) -> dict[str, Any]:
        """Archive what can be archived, and say why the others cannot."""
        archived: list[str] = []
        refused: list[dict[str, str]] = []
        # One after another: a failure must not stop the others.
        for one in given.sessions:
            try:
                await self._helm.extras.upkeep.archive(one)
                archived.append(one)
            except HelmsmanError as error:
                refused.append({"sessionId": one, "message": error.message})
        return {"archived": archived, "refused": safe(refused)}

    @route("/api/labels", LabelsInput)
    async def label(self, request: Request, given: LabelsInput) -> dict[str, Any]:
        await self._helm.extras.upkeep.label(given.sessions, add=given.add, remove=given.remove)
        return {"labels": safe(await anyio.to_thread.run_sync(self._helm.labels.all))}

    @route("/api/sessions/{session_id}/review", ReviewBody)
    async def review(self, request: Request, given: ReviewBody) -> dict[str, Any]:
        instructions = (given.instructions or "").strip() or None
        begun = await self._helm.extras.reviews.start(session_id=session_id(request), instructions=instructions)
        return {"nothing": begun.nothing} if begun.session is None else state_of(begun.session)


def of_session(helm: HelmsmanService, operation: Operation[Any]) -> Endpoint:
    """Return the endpoint of an operation on a session: its other arguments are the body."""

    async def run(request: Request) -> dict[str, Any]:
        given = await body(request, operation.input(), sessionId=session_id(request))
        output = await operation.run(ProgramCall(helm, viewer="dashboard"), given)
        # A program's call is never deferred.
        assert not isinstance(output, Deferred)
        return output.as_dict()

    return run
