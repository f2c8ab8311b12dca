"""Dashboard's HTTP API: every route, field and event. The page (`static/`) is written against this text.

Everything under `/api` is JSON in UTF-8, camelCase, `Cache-Control: no-store`; unknown values are left out. Whatever Codex
printed is text, with what would not be seen written out (but not in `details` and `options`): show it as text. Times are
ISO 8601 with an offset. `status` is a session's: `active`, `awaiting_approval`, `done`, `error`, `interrupted`.

**Files.** `/` is `static/index.html` and `/<name>` is `static/<name>`: html, css, js, svg, png, webmanifest, json, txt;
nothing else is served, and there are no other paths (use `#/…` for places in the page). Each has an ETag and is asked for
anew. The Content-Security-Policy is `default-src 'none'` with `'self'` for scripts, styles, images (data: too), fonts,
connections, the manifest and workers: no inline script, no inline style, no other host.

**Getting in.** Host and Origin are checked first (421, 403), and the path, which must be a plain one (400 `bad_path`). The
files above and the four POSTs marked * need nothing else, take 4 KiB at most, and end their connection. Every other
request needs `Authorization: Bearer <http-token>` or the cookie of a login (HttpOnly, SameSite=Strict). With the cookie, a
request that is not GET also needs `Content-Type: application/json`, the header `X-Helmsman: 1` and the page's own origin;
otherwise 403 `cross_site`. Not logged in: 401 `wrong_token`.

    POST /api/login *       {code, device: {name*, key*}} → {ok, device?: id} and the cookie; 401 wrong_code. The page does
                            this with the code of `/#login=CODE`, and takes it out of its address. With the public key of
                            a device (P-256, SPKI, base64), this browser is remembered at this address
    POST /api/login/device * {device*, nonce*, challenge*, signature*} → {ok} and the cookie; 401 wrong_code. A remembered
                            browser signs `helmsman device`, its origin, the nonce and the challenge of /api/proof
    POST /api/logout        {} → {ok}; the cookie is removed and revoked, and the device forgotten
    POST /api/codes         {address} → {code, path: "/#login=…", expiresAt, qr?}: a link for another device, once, for 10
                            minutes; `qr` is that of `address` and the path, as an image
    GET /api/devices        → {devices: [{id, name, address, addedAt, seenAt, isThis, push, approves}]}
    POST /api/devices/{id}/revoke {} → {revoked: id}: it needs a code from now on
    GET /api/push           → {key}: for `pushManager.subscribe`; 409 if this browser is not remembered, or without a hub
    POST /api/push          {endpoint, keys: {p256dh, auth}, approves} → {push}: notifications to this device, also while no
                            page is open; without `endpoint` no longer. `approves`: they may have a button for yes
    GET /api/grants         → {grants: [{id, name, clientId, resource, addedAt, usedAt}]}: programs with access by OAuth
    POST /api/grants/{id}/revoke {} → {revoked: id}
    POST /api/oauth/request {query} → {request, name, clientId, clientHost, redirectUri, isLocal, resource}: what
                            `/authorize` shows of its own query, or {problem, redirect}; 400 invalid_client
    POST /api/oauth/decision {request, allow} → {redirect}
    POST /api/proof *       {nonce} → {challenge, proof}: the server proves that it has the token (`web/proof.py`)
    POST /api/proof/code *  {nonce, challenge, proof} → as /api/codes, for who has proved the same; 401 wrong_proof

**Errors** are `{code, message, retryable, …}` with a fitting status: 400 invalid_input, answer_invalid; 404
session_not_found, task_not_found, not_found; 409 session_busy, session_idle, question_not_open, …; 413 too_large; 429
too_many_sessions; 502 engine trouble; 503 the rest that may work later. `message` is a sentence for people.

**Looking**

    GET /api/overview → {version, codex?: {version, path}, codexError?: {code, message},
        defaultAgent, capabilities?: {agent, can: [str], cannot: {word: who can}}, defaultDirectory, approvalTimeoutSec,
        maxSessions, atOnce (turns that count towards it), running (sessions, wherever their turn runs), awaitingApproval,
        questions, directories: [str]}
        `running` counts turns under way (those that wait included), `directories` are the projects lately worked in,
        `labels` all labels in use.

    GET /api/agents → {agents: [{agent, title, isDefault?, installed, problem? (why it is not), version?, path?,
        login? (the file or variable with its login, where one was found), can: [str], cannot: {word: who can},
        lacks: {word: what it cannot do, after "it cannot"}}]}; the default one first, then those that are here.

    GET /api/sessions?query&directory&project&agent&state&label&cursor&limit=50&archived=0&running=0 → {sessions: [Listed],
        nextCursor?}
        Newest first, at most 200 a page. `query`: words in name, first prompt, directory or id. running=1: only those with a
        turn under way, wherever it runs, in one page. `project`: of a repository, its worktrees and subdirectories too;
        `state` is a status, or denied: a question of its last turn was, by the deadline.
        Listed = {sessionId, agent, directory?, repository? (of a worktree), name?, summary?, timestamp, createdAt?,
        isActive, status?, questions? (how many are open), source?, originator?, model?, engineVersion?, parentId?,
        archived?, taskIds?, labels? [str],
        waitingFor?: quota|budget, resumesAt?, resumesInSec?, note?,
        timedOut? [str] (questions of its last turn that the deadline denied)}, as in `helmsman list --json`, and
        {seconds? (of its tasks), tokens?, costUsd?}.

    GET /api/sessions/{id}?outputLines=0 → what `codex_status` gives (sessionId, agent, status, result?, output?, error?,
        recentOutput, pendingQuestion?, moreQuestions?, itemEvents (always empty here: the transcript has them), usage?
        {inputTokens, cachedInputTokens, outputTokens, reasoningOutputTokens}, turnCount, progress? {text, done?, total?,
        unit?, etaSeconds?}, waitingFor?, resumesAt?, resumesInSec?, note?, timedOut? [str] (questions of this turn that the
        deadline denied), cursor, recommendedPollMs, workingDirectory?, model?, worktree? {path, branch}) and
        {name?, prompt?, agentTitle, sandbox?, enforced? (whether something holds it to that), costUsd? (of `usage`; none
        if unknown), subAgents? [{id, depth, name?, status, tokens?, costUsd?}] (of the last turn, as a tree),
        approvalPolicy?, can? [str] (what its engine can do, such as steer),
        client? (the MCP client whose model may act on it: it opened the session, or was handed it),
        elsewhere? (who runs its turn, where that is another process: it can only be looked at),
        archived?, questions: [Question], queued, taskIds, waitingTaskId? (which waits for a usage limit), createdAt,
        changedAt, turnSeconds?, hasDiff, repository? (of a worktree)}.

    GET /api/sessions/{id}/turns → {turns: [Turn]}, oldest first, for the timeline.
        Turn = {number (from 1), turnId?, status: active|done|error|interrupted, prompt?, firstIndex, items,
        kinds: {itemType: count}, startedAt?, endedAt?, seconds?, taskId?, usage?}

    GET /api/sessions/{id}/transcript?before&after&limit=100 → {entries: [Entry], first, next, total, cursor}
        One flat list of everything done, numbered from 0. Without before or after: its end. `before=N`: the entries just
        before N; `after=N`: from N on (so after=next is the following page, after=first re-reads this one). At most 500
        entries and about 1 MiB a page, so a page may be shorter than `limit`: continue at `first` or `next`. `cursor` is the
        session's, as in the live stream.
        Entry = {index, turn, turnId?, item: Item, by?: helmsman (who said it, where that was no person), cut?}; an entry's
        index never changes while the session runs on.
        Item = {type, id, status: started|in_progress|completed|failed, summary, …by type:
            user_message {text, images} (in_progress: the agent has not read it yet), agent_message {text, phase?},
            reasoning {text},
            command_execution {command, script, directory?, exitCode?, output, announced, declined, durationMs?},
            file_change {changes: [File], declined},
            mcp_tool_call {server, tool, arguments?, result?, error?}, dynamic_tool_call {tool, arguments?, result?},
            web_search {query}, todo_list {steps: [{text, status: pending|in_progress|completed}], explanation?},
            plan {text}, collab_tool_call {tool, prompt?, agents: [{id, status, message?}]}, image_view {path},
            context_compaction {}, review {text, finished}, error {message}, unknown {name, payload},
            decision {question, answer?, by, via?, outcome}: what became of a question, where this server saw it}
        `script` is the command without the shell around it. What is Markdown (agent_message, plan, review, reasoning) has
        `html` beside its text: from nh3, with no script, style or image in it, and links that lead only to the web.
        File = {path, oldPath?, kind: added|deleted|modified|renamed|copied|mode, added?, removed?, lines: [Line], missing?}
        Line = [add|remove|same|hunk|note|raw, text with its sign, number before or null, number after or null]; `missing`
        says how many lines there is no room for.
        Long texts are cut in the middle for pages, and `cut` says how many characters are missing.

    GET /api/sessions/{id}/transcript/{index} → Entry, whole (up to some MiB).

    GET /api/sessions/{id}/diff?unless&ignoreWhitespace=0&since → {files: [File], cut?, about: what this is of, in a
        sentence, scope?: worktree|turn|uncommitted, digest?, nested? [str] (git repositories inside, which are no part of
        it), root? (where its paths begin), repository? (of a worktree: where it is applied), canApply?, marks? {path: a
        mark that differs once the change of the file does}, at}: what the session changed. With `unless`, a digest, of the
        same changes only {digest, unchanged: true}. Of a worktree, `files` may leave out changes of white space, or what
        there was before the first turn after a time (`at` of an earlier answer); digest and marks are of all changes, and
        what is shown so cannot be applied.
        Lines here have a fifth value where something is to be told apart in them: [[length, class], …] behind the sign, a
        class being some of kw, str, com, num, fn, bi, word (changed in the line), or none.

    GET /api/sessions/{id}/diff/file?path*&oldPath&digest* → {lines: [Line]}: a changed file with all its lines

    GET /api/sessions/{id}/unsaved → {commits: [str], files: [{path, kind, …}], nested: [str], unreadable, key}: what
        discarding the session's worktree would lose

    GET /api/sessions/{id}/rewind?to&part&undo → what taking the session back to before a turn would come to: as `helmsman
        session rewind --show --json` says it, without the diff, and {lines: [str]}, the same in words

    GET /api/questions → {questions: [Question]}, oldest first, of all sessions.
        Question = {sessionId, id, type: command_approval|patch_approval|permission_approval|user_input|mcp_elicitation,
        asker (who asks: Codex), title, lines: [{label, text}], files?: [File],
        questions: [{question, options: [str], labels: {option: text}, freeText, secret, descriptions: {option: text}}],
        details: {command?, directory?, reason?, diff?, changes?,
        prefixes?, …}, alwaysRule?: the rule that approve_always would keep,
        deadline? {secondsLeft, paused}, directory?, summary?, agentId?}
        `title` and `lines` say all that a yes grants; a line without a label continues with the value before it.
        It is denied when no second is left; `paused`: the clock is paused, because a user sees the question.

    GET /api/tasks?status&origin&agent&directory&cursor&limit=50 → {tasks: [Task], nextCursor?}; `status` may be
        several, by commas
    GET /api/tasks/{idOrAlias} → Task
        Task = {taskId, alias, agent, mode: local|cloud, status: pending|working|completed|failed|canceled|unknown,
        inputRequired?, instruction, directory?, sessionId?, externalId?, model?, createdAt, updatedAt, completedAt?,
        progress?, usage?, result?, error? {code, message, retryable}, note?, url?, waitingFor?: quota|budget,
        resumesAt?, resumesInSec?, unchanged? (in a list: its turn changed no file that git knows of),
        job? (debug|review|plan|refactor|test|loop: no turn, but an outcome that turns are run for; its progress may have
        steps: [{title, status, attempts, check}]),
        elsewhere? (another process runs it, and only that one can stop it; `note` says which)}
    GET /api/tasks/{idOrAlias}/report → {task: Task, sessions: [id] (whose turns it has run; what they ask, it waits for),
        report? (as `helmsman.capabilities.outcomes.reports` says), files?: [File] (the change), cut?}; 404 if it is no job

    GET /api/engines → {engines: [{id, agent, status: "in use"|unattended|draining|orphaned|"not answering", running?,
        waiting?, version?, place, path?, pid, startedAt, idleSeconds, sessions: [id]}],
        own?: {name: app-server|exec, id?, lost?: message}}; `own` is the engine this server uses, once it has one.
        Of a fleet also fleet: {machines: [{name, isAlive, isDraining, running, capacity, labels, agents, version,
        seenSecondsAgo}], waiting: {queue: number}, tasks: [{taskId, sessionId, text, status, askedAt, machine?, queue,
        priority, notBefore?}]}: of its tasks the first hundred, those that run first, the others in their order.

    GET /api/usage?by=day|model|directory|session|agent&agent&since=30d&limit=400 → {by, since?, agent?, rows: [{key?,
        inputTokens, cachedInputTokens, outputTokens, reasoningOutputTokens, turns, sessions, costUsd?, unpricedTokens}],
        total: the same without key, omitted, unpricedModels: [str], budgets: [{key, used, budget, granted?, project?, unit:
        USD|tokens, isUsedUp}]}
        `since`: 24h, 7d, 2w, or a date (2026-11-01); all: everything. Days are local dates, oldest first; other rows by
        tokens, most first. `omitted` rows do not fit into the limit (the oldest days, the smallest others); the total
        has them. `costUsd` is of what has a price; `unpricedTokens` are those it leaves out.

    GET /api/account → {kind?, email?, plan?, login, limits: [{name, remainingPercent, windowMinutes?, resetsAt?}],
        largeTaskFits: likely|uncertain|unlikely|no|unknown, advice}: how Codex is logged in, in a sentence, and what is left
        of the account's rate limits, as far as that is known. Asks Codex, which is started for it if need be.

    GET /api/rules?directory → {rules: [Rule], ownFile, problem?}: every rule that concerns work in the directory, in order
        of files; without one, those that hold everywhere. `problem` says which file cannot be read; nothing is then
        allowed by rule. `ownFile` is where answers keep theirs.
        Rule = {id, effect: allow|deny|ask, description, toml, outside?, file, number, line?, removable?, ignored?: why it
        does not count there}

    GET /api/schedules → {schedules: [Schedule]}
    GET /api/schedules/{id} → Schedule with runs: [{dueAt, enteredAt, taskId?, task?: Task, note?}], newest first
        Schedule = {scheduleId, status: active|paused|over|proposed, proposedBy?, prompt,
        when: in words, cron?, everySec?, at?, timezone, nextAt?,
        cwd, agent, model?, approvalPolicy?, sandbox?, worktree?, missed: run|skip, overlap?, maxCostUsd?, createdAt,
        lastRun?}
    GET /api/notices → {notices: [{id, kind, title, text?, sessionId?, questionId?}], tellsOfQuestions, nextInSec?}
        What pages are to show by notifications, as `[notify]` says (way = "browser"). A page that has shown one says so.
        `tellsOfQuestions`: new questions come here too, if they stay unanswered for a while. `nextInSec`: ask again
        then.

    GET /api/search?q&agent&directory&archived=0&limit=20 → {sessions: [Listed with excerpt: [str]], tasks: [Task], unread?}
        Words in all that was said and done in sessions, newest first, and in the instructions, aliases and ids of tasks.
        Every second part of `excerpt` is a word that was looked for. `unread`: while the index is brought up to date, how
        many sessions are not in it yet: ask again.

    GET /api/models?agent → {models: [{id, name, description?, isDefault, efforts: [str], defaultEffort?}]}; 409 unsupported
    GET /api/directories?begins → {directories: [str]}: what a path may continue as, inside the allowed roots
    GET /api/in-force?directory*&agent → {model?, effort?, sandbox?, approvalPolicy?}: what "as configured" comes to there

    GET /api/hosts → {hosts: [{name, address, status: connected|connecting|away, problem?}]}: the user's other machines.
        Every route that is not about getting in takes `host=NAME`, and ids of sessions, tasks and questions that begin with
        `NAME:`: that machine's dashboard answers it, with such ids. 502 host_unreachable.

**Acting** (bodies are JSON objects; unknown fields are refused)

    POST /api/sessions {prompt*, workingDirectory, model, approvalPolicy, sandbox, …: the arguments of codex_start, agent,
        unenforced} → 201 {sessionId, status, taskId?, worktree?, note?}
        A directory in another session's worktree is refused.
    POST /api/images {data*: base64 of a PNG, JPEG, GIF or WebP of at most 8 MiB} → 201 {path}: for `images`, for a week
    POST /api/sessions/{id}/say|interrupt|fork|rollback|compact|rename|archive|unarchive: the operation of that name, with
        the arguments and the answer of its tool (`helmsman.operations`); `fork` → 201
    POST /api/sessions/{id}/hand {to: the name of an MCP client; without one it is taken back} → {sessionId, client?}
    POST /api/archive {sessions*} → {archived: [id], refused: [{sessionId, message}]}
    POST /api/labels {sessions*, add: [str], remove: [str]} → {labels: all that are in use}
    POST /api/sessions/{id}/review {instructions} → {sessionId, status} of where it runs, or {nothing: why}
    POST /api/sessions/{id}/steer {message*} → {sessionId, status}
    POST /api/sessions/{id}/rewind {digest*, to, part: both|files|conversation, undo} → the same, done; 409 diff_changed
        where it no longer is as shown, cannot_rewind
    POST /api/sessions/{id}/questions/{questionId} {answers: [str]*} → {sessionId, status}
        One answer a part: an option, `deny: the reason`, or free text. Already answered: 409 question_not_open with
        {answer?, by?}: the answer and its author.
    POST /api/sessions/{id}/apply {digest*, allowDirty, only: {path: [hunk from 0], or null for the file}} → {repository,
        files, how: clean|three-way, digest, stat, ended?}: brings the changes of its worktree into the main tree,
        unstaged: all that was shown, or `only` a part of it, or nothing. 409 session_busy, diff_changed,
        dirty_tree {files}, apply_conflict {conflicts, reasons, hunks}
    POST /api/sessions/{id}/discard-part {digest*, only*} → {files}: takes some changes back in its worktree
    POST /api/sessions/{id}/discard {losing*: the key of `unsaved`} → {worktree, branchKept?}
    POST /api/shown {page*, questions: [questionId], sessions: [sessionId], hidden: [either]} → {questions: [{id, deadline}]}
        `page` names a window (random). `questions` are on its screen, visible to a person: their deadlines stand still for
        15 seconds, so say it again every few; `hidden` no longer are. The answer has those that are open. No notification
        is sent at the end of a turn whose session is on a screen (`sessions`).
    POST /api/notices/{id}/shown {} → {ok}
    POST /api/jobs/debug|review|plan|refactor|test {request, workingDirectory, agent, check, candidates, apply, …: what the
        tool of that name takes} → 201 {taskId, status, agent, why}
    POST /api/tasks/{id}/cancel {reason} → {task: Task, message}
    POST /api/tasks/{id}/resume {at} → {task: Task}: one that waits for a usage limit resumes, now or at a time in words
    POST /api/schedules {prompt*, cron | every | at *, timezone, workingDirectory, model, approvalPolicy, sandbox, worktree,
        missed, overlap, maxCostUsd} → 201 Schedule; 409 unsupported where there is no hub
    POST /api/schedules/{id}/pause|resume|confirm {} → Schedule
    POST /api/schedules/{id}/run {} → {task: Task}
    POST /api/schedules/{id}/remove {} → {removed: Schedule}
    POST /api/rules/explain {command*, directory*, inside: bool} → {effect: allow|deny|ask, reason, rule?: Rule}
        What rules would do with a command that Codex wants to run there; `inside`: that is proved to stay in the sandbox.
    POST /api/rules/add {effect*, command*, directory*, outside, toml} → {toml}: the rule, which is not added yet; with the
        same `toml`, {added?: id}: it is, unless there is one
    POST /api/rules/{id}/remove {} → {removed: Rule}; 400 where no answer made such a rule
    POST /api/rules/{id}/confirm {} → {confirmed: Rule}; 400 where no model proposed such a rule

**Live**

    GET /api/live  (text/event-stream; resumes by Last-Event-ID, or ?lastEventId=…)
        event: hello    {resumed: bool, version}          first; resumed false: read everything anew
        event: changes  {changes: [{sessionId?, host?, kinds: [kind], status?, cursor?}]}, with an id
        comment lines   every 15 s, as a sign of life
        kind = status (a turn began or ended), items (something was done), text (words are being written), question (one was
        asked or closed), details (name, model, note, usage) of a session; without sessionId: tasks (the registry changed),
        sessions (the list changed through another program), notices (there may be notifications), hosts (another
        machine is there or away). With `host`: the same of that machine.
        At most about four messages a second; each names a session at most once, whatever happened in it. A slow reader gets
        fewer and fuller messages, never a backlog. The stream says only that something changed: read it by the routes above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.routing import Route, Router

from helmsman.operations import sessions, upkeep
from helmsman.web.acting import (
    Acting,
    JobRoutes,
    LoginRoutes,
    NewSessions,
    RewindRoutes,
    Rules,
    ScheduleRoutes,
    UpkeepRoutes,
    of_session,
)
from helmsman.web.devices import DeviceRoutes
from helmsman.web.hosts import HostRoutes
from helmsman.web.json_http import NotFound, answering, text
from helmsman.web.live import LIVE_PATH, EventStream, Live
from helmsman.web.reading import Reading
from helmsman.web.review import PublishingRoutes, ReviewRoutes

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from helmsman.operations.table import Operation
    from helmsman.service import HelmsmanService
    from helmsman.web.login import Logins
    from helmsman.web.proof import Challenges


_OPERATIONS: Final[tuple[Operation[Any], ...]] = (
    *(sessions.say, sessions.interrupt, upkeep.fork, upkeep.rollback, upkeep.compact),
    *(upkeep.rename, upkeep.archive, upkeep.unarchive),
)
"""Operations on a session that the page calls as they are."""


def _operation_route(helm: HelmsmanService, one: Operation[Any]) -> Route:
    path = f"/api/sessions/{{session_id}}/{one.name.removeprefix('{tool}_')}"
    return Route(path, answering(of_session(helm, one), status=201 if one is upkeep.fork else 200), methods=["POST"])


class Dashboard:
    """Routes of the dashboard for one Helmsman. The server decides who may use them."""

    def __init__(self, helm: HelmsmanService) -> None:
        self._helm = helm
        self.live = Live(helm)

    def routes(self) -> list[Route]:
        """Return all routes except those for logging in, which only a server has."""
        helm = self._helm
        groups = (
            *(Reading(helm), ReviewRoutes(helm), PublishingRoutes(helm), RewindRoutes(helm), JobRoutes(helm)),
            *(Acting(helm), NewSessions(helm), UpkeepRoutes(helm, self.live), Rules(helm), ScheduleRoutes(helm)),
        )
        return [
            *(route for group in groups for route in group.routes()),
            *(_operation_route(helm, one) for one in _OPERATIONS),
            # Last, so that every other route has been tried.
            Route("/api/{path:path}", answering(_nothing_here)),
        ]

    def app(self) -> Router:
        """Return the routes and the stream of changes, for the dashboard of another machine."""
        return Router([Route(LIVE_PATH, answering(self.stream), methods=["GET"]), *self.routes()])

    async def stream(self, request: Request, may_read: Callable[[], bool] = lambda: True) -> EventStream:
        """Stream changes, for as long as `may_read` says so."""
        # `EventSource` sets no header on its first request, so a parameter does the same.
        return self.live.stream(request.headers.get("last-event-id") or text(request, "lastEventId"), may_read)


def api_routes(helm: HelmsmanService, logins: Logins, challenges: Challenges) -> list[Route]:
    """Return all routes, including those for the user's other machines."""
    dashboard = Dashboard(helm)
    hosts = HostRoutes(helm, dashboard.live)

    async def stream(request: Request) -> EventStream:
        """Stream changes, with a cookie until that is revoked."""
        # Only a cookie can be revoked while the stream lasts.
        has_cookie = logins.knows(request.scope, request.headers)
        return await dashboard.stream(request, lambda: not has_cookie or logins.knows(request.scope, request.headers))

    return [
        *LoginRoutes(logins, challenges).routes(),
        *DeviceRoutes(helm, logins, challenges).routes(),
        Route(LIVE_PATH, answering(stream), methods=["GET"]),
        Route("/api/hosts", answering(hosts.listed), methods=["GET"]),
        # Only these routes can be answered by another machine: logging in is for this one.
        *map(hosts.before, dashboard.routes()),
    ]


async def _nothing_here(_request: Request) -> dict[str, Any]:
    raise NotFound("There is nothing at this address. Look up the dashboard's routes in helmsman.web.api.")
