"""Signatures of the verbs that a program may ask of the hub.

Made by `scripts/make_verb_types.py` from the service, and checked against it by the tests. They are texts because a program
needs few of them, and does not load the modules of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTION_TYPES: Final[Mapping[str, str]] = {
    "SafetyOptions": "(trust_repository: bool, unenforced: bool)",
    "StartOptions": (
        "(agent: str | None, model: str | None, approval_policy: Literal['untrusted', 'on-failure', 'on-request', "
        "'never'] | None, sandbox: Literal['read-only', 'workspace-write', 'danger-full-access'] | None, full_auto: "
        "bool, dangerously_bypass_approvals_and_sandbox: bool, writable_roots: Sequence[str], profile: str | None, "
        "config: Mapping[str, Any] | None, base_instructions: str | None, developer_instructions: str | None, "
        "skip_git_repo_check: bool, **options: SafetyOptions)"
    ),
    "TurnOptions": (
        "(images: Sequence[str], kind: helmsman.model.options.ReviewTarget | Literal['plan', 'work'] | None, limits: "
        "helmsman.model.options.TurnLimits | None, on_limit: Literal['ask', 'wait', 'fail'] | None, placement: "
        "helmsman.model.options.Placement | None, **options: WorkOptions)"
    ),
    "WorkOptions": (
        "(output_schema: Mapping[str, Any] | None, effort: str | None, max_cost_usd: float | None, **options: "
        "StartOptions)"
    ),
}
"""Groups of options, which several verbs take. A verb names one behind `**`."""

VERB_TYPES: Final[Mapping[str, str]] = {
    "capabilities": "(agent: str | None) -> helmsman.agents.protocol.Capabilities",
    "events": "(session_id: str, cursor: int) -> tuple[int, list[tuple[str, str, str]]]",
    "extras.account.check_remaining": "(percent: float, agent: str | None) -> tuple[str, ...]",
    "extras.account.log_in": (
        "(on_begun: Callable[[helmsman.agents.protocol.Login], None], with_code: bool, agent: str | None) -> str | None"
    ),
    "extras.account.models": "(agent: str | None) -> tuple[helmsman.agents.protocol.Model, ...]",
    "extras.account.read": "(agent: str | None) -> helmsman.capabilities.account.AccountReport",
    "extras.account.skills": "(directory: str | None, agent: str | None) -> helmsman.agents.protocol.SkillList",
    "extras.budgets.states": "(directory: str | None) -> tuple[helmsman.capabilities.budgets.BudgetState, ...]",
    "extras.changes.apply": (
        "(session_id: str, allow_dirty: bool, digest: str | None, viewer: str | None, only: Mapping[str, "
        "Collection[int] | None] | None) -> helmsman.capabilities.changes.AppliedSession"
    ),
    "extras.changes.diff": "(session_id: str, viewer: str | None) -> helmsman.capabilities.changes.SessionDiff",
    "extras.changes.discard": (
        "(session_id: str, losing: helmsman.git.tree_changes.Unsaved | None) -> helmsman.git.lifecycle.Discarded"
    ),
    "extras.changes.discard_part": (
        "(session_id: str, only: Mapping[str, Collection[int] | None], digest: str) -> "
        "tuple[helmsman.git.diff.FileStat, ...]"
    ),
    "extras.changes.leftovers": "() -> tuple[helmsman.git.lifecycle.Leftover, ...]",
    "extras.changes.prune": (
        "(found: Sequence[helmsman.git.lifecycle.Leftover]) -> tuple[helmsman.git.lifecycle.Discarded, ...]"
    ),
    "extras.changes.stop_work": "(session_id: str) -> tuple[str, ...]",
    "extras.changes.unsaved": "(session_id: str) -> helmsman.git.tree_changes.Unsaved",
    "extras.changes.view": (
        "(session_id: str, view: helmsman.git.tree_changes.DiffView, since: datetime | None) -> "
        "tuple[helmsman.capabilities.changes.SessionDiff, str]"
    ),
    "extras.changes.worktrees": "() -> tuple[helmsman.capabilities.changes.KnownWorktree, ...]",
    "extras.configuration.in_force": "(directory: str, agent: str | None) -> helmsman.agents.protocol.InForce",
    "extras.configuration.plan": (
        "(edits: Sequence[helmsman.agents.protocol.ConfigEdit], agent: str | None) -> "
        "helmsman.capabilities.configuration.ConfigChange"
    ),
    "extras.configuration.read": "(directory: Path | None, agent: str | None) -> helmsman.agents.protocol.AgentConfig",
    "extras.configuration.write": (
        "(change: helmsman.capabilities.configuration.ConfigChange, agent: str | None) -> str | None"
    ),
    "extras.fleet": "() -> Mapping[str, Any] | None",
    "extras.limits.go_on": "(task: helmsman.tasks.model.Task, at: str | None) -> helmsman.tasks.model.Task",
    "extras.message_queue.drop": "(session_id: str, task_id: str) -> None",
    "extras.message_queue.move": "(session_id: str, task_id: str, place: int) -> None",
    "extras.notices.for_pages": "() -> helmsman.capabilities.notices.ForPages",
    "extras.notices.log": "(limit: int) -> Sequence[helmsman.notices.store.Delivery]",
    "extras.notices.shown": "(notice_id: str) -> None",
    "extras.notices.test": "(name: str | None) -> Sequence[helmsman.notices.store.Delivery]",
    "extras.notices.ways": "() -> tuple[helmsman.capabilities.notices.ChannelStatus, ...]",
    "extras.outcomes.start": (
        "(wanted: helmsman.capabilities.outcomes.request.Wanted, idempotency_key: str | None) -> "
        "helmsman.tasks.model.Task"
    ),
    "extras.plans.start": (
        "(prompt: str, cwd: str | None, worktree: bool | helmsman.model.options.WorktreeOptions, min_remaining_percent:"
        " float | None, idempotency_key: str | None, on_task: Callable[[str], None] | None, tools: "
        "Sequence[helmsman.model.client_tools.ToolDefinition], **options: TurnOptions) -> "
        "helmsman.sessions.session.Session"
    ),
    "extras.publishing.allow": "(session_id: str, url: str) -> None",
    "extras.publishing.answer": (
        "(session_id: str, pull_request: str, comment: helmsman.capabilities.forge.Comment, text: str) -> None"
    ),
    "extras.publishing.commit": (
        "(session_id: str, message: str, digest: str, applied: bool) -> tuple[helmsman.git.tree_changes.CommitMade, "
        "...]"
    ),
    "extras.publishing.handled": "(session_id: str, ids: Sequence[str]) -> None",
    "extras.publishing.issue_prompt": "(reference: str, directory: str) -> tuple[str, str]",
    "extras.publishing.link": "(session_id: str, issue: str) -> None",
    "extras.publishing.look": "(session_id: str, applied: bool) -> helmsman.capabilities.publishing.ToCommit",
    "extras.publishing.news": (
        "(session_id: str, authors: Collection[str]) -> tuple[helmsman.capabilities.publishing.PullRequestNews, ...]"
    ),
    "extras.publishing.open": (
        "(session_id: str, target: helmsman.capabilities.publishing.ToPublish, title: str, text: str, draft: bool) -> "
        "str"
    ),
    "extras.publishing.push": (
        "(session_id: str, targets: Sequence[helmsman.capabilities.publishing.ToPublish]) -> None"
    ),
    "extras.publishing.targets": (
        "(session_id: str, base: str | None, remote: str | None, branch: str | None) -> "
        "tuple[helmsman.capabilities.publishing.ToPublish, ...]"
    ),
    "extras.reviews.report": "(session_id: str) -> helmsman.capabilities.reviews.VerifiedReview | None",
    "extras.reviews.start": (
        "(target: helmsman.model.options.ReviewTarget | None, cwd: str | None, session_id: str | None, instructions: "
        "str | None, detached: bool, agent: str | None, model: str | None, on_task: Callable[[str], None] | None, "
        "**safety: SafetyOptions) -> helmsman.capabilities.reviews.BegunReview"
    ),
    "extras.rewinding.preview": (
        "(session_id: str, to: int | str | None, part: Literal['both', 'files', 'conversation'] | None, undo: bool) -> "
        "helmsman.capabilities.rewinding.Rewind"
    ),
    "extras.rewinding.rewind": (
        "(session_id: str, digest: str, to: int | str | None, part: Literal['both', 'files', 'conversation'] | None, "
        "undo: bool) -> helmsman.capabilities.rewinding.Rewind"
    ),
    "extras.schedules.add": (
        "(prompt: str, cron: str | None, every: str | None, at: str | None, timezone: str | None, cwd: str | None, "
        "missed: Literal['run', 'skip'], overlap: bool, worktree: bool, **options: WorkOptions) -> "
        "helmsman.schedules.store.Schedule"
    ),
    "extras.schedules.confirm": "(schedule_id: str) -> helmsman.schedules.store.Schedule",
    "extras.schedules.get": "(schedule_id: str) -> helmsman.schedules.store.Schedule",
    "extras.schedules.list": "() -> tuple[helmsman.schedules.store.Schedule, ...]",
    "extras.schedules.pause": "(schedule_id: str) -> helmsman.schedules.store.Schedule",
    "extras.schedules.remove": "(schedule_id: str) -> helmsman.schedules.store.Schedule",
    "extras.schedules.resume": "(schedule_id: str) -> helmsman.schedules.store.Schedule",
    "extras.schedules.run_now": "(schedule_id: str) -> helmsman.tasks.model.Task",
    "extras.schedules.runs": "(schedule_id: str, limit: int) -> tuple[helmsman.schedules.store.ScheduleRun, ...]",
    "extras.search.find": (
        "(words: str, agent: str | None, directory: str | None, limit: int, include_archived: bool, patience: float) ->"
        " helmsman.capabilities.search.SearchResult"
    ),
    "extras.upkeep.archive": "(session_id: str) -> None",
    "extras.upkeep.clear_goal": "(session_id: str) -> None",
    "extras.upkeep.compact": "(session_id: str) -> helmsman.sessions.session.Session",
    "extras.upkeep.goal": "(session_id: str) -> helmsman.agents.protocol.Goal | None",
    "extras.upkeep.own_terminal": "(session_id: str) -> helmsman.agents.protocol.OwnTerminal",
    "extras.upkeep.rename": "(session_id: str, name: str) -> helmsman.sessions.session.Session",
    "extras.upkeep.roll_back": "(session_id: str, turns: int) -> helmsman.sessions.session.Session",
    "extras.upkeep.set_goal": "(session_id: str, objective: str) -> helmsman.agents.protocol.Goal | None",
    "extras.upkeep.unarchive": "(session_id: str) -> helmsman.sessions.session.Session",
    "extras.usage.of_session": "(session_id: str) -> list[helmsman.sessions.history.SpentTurn]",
    "extras.usage.report": (
        "(since: str | None, group_by: Literal['day', 'model', 'directory', 'session', 'agent'], agent: str | None) -> "
        "helmsman.capabilities.usage_report.UsageReport"
    ),
    "extras.usage.spent_since": "(since: datetime) -> list[helmsman.capabilities.usage_report.Spending]",
    "extras.workspaces.known": "(repository: str, commits: Sequence[str]) -> list[str]",
    "extras.workspaces.place": "(workspace: helmsman.git.bundles.PackedTree) -> helmsman.git.remote_trees.Placed",
    "extras.workspaces.put": "(workspace_id: str, part: str, offset: int, data: bytes) -> None",
    "extras.workspaces.read": "(workspace_id: str, offset: int) -> bytes",
    "extras.workspaces.remove": "(workspace_id: str) -> None",
    "extras.workspaces.result": "(session_id: str) -> helmsman.git.remote_trees.Result",
    "extras.workspaces.stop_work": "(session_id: str) -> tuple[str, ...]",
    "fork": (
        "(session_id: str, message: str | None, from_turn: int | str | None, **options: StartOptions) -> "
        "helmsman.sessions.session.Session"
    ),
    "give_up": "(session_id: str, question_id: str) -> None",
    "hand": "(session_id: str, to: str | None) -> helmsman.sessions.session.Session",
    "history": "(session_id: str) -> tuple[helmsman.model.events.PastTurn, ...]",
    "installed": "(agent: str) -> helmsman.agents.found_programs.Installed | None",
    "interrupt": "(session_id: str) -> helmsman.sessions.session.Session",
    "last_statuses": (
        "(sessions: Sequence[tuple[helmsman.agents.protocol.SessionInfo, Sequence[helmsman.tasks.model.Task]]]) -> "
        "dict[str, Literal['active', 'awaiting_approval', 'done', 'error', 'interrupted']]"
    ),
    "list": (
        "(directory: str | None, query: str | None, limit: int, cursor: str | None, include_archived: bool, "
        "include_sub_agents: bool, agent: str | None) -> tuple[list[helmsman.agents.protocol.SessionInfo], str | None]"
    ),
    "respond": (
        "(session_id: str, question_id: str, answers: Sequence[str], by: helmsman.model.answered_by.AnsweredBy) -> "
        "helmsman.sessions.session.Session"
    ),
    "say": (
        "(session_id: str, message: str, when_busy: Literal['error', 'steer', 'queue'], on_task: Callable[[str], None] "
        "| None, tools: Sequence[helmsman.model.client_tools.ToolDefinition], **options: TurnOptions) -> "
        "helmsman.sessions.session.Session"
    ),
    "session": "(session_id: str) -> helmsman.sessions.session.Session",
    "start": (
        "(prompt: str, cwd: str | None, worktree: bool | helmsman.model.options.WorktreeOptions, min_remaining_percent:"
        " float | None, idempotency_key: str | None, on_task: Callable[[str], None] | None, tools: "
        "Sequence[helmsman.model.client_tools.ToolDefinition], carried: helmsman.steering.opening.Carried | None, "
        "**options: TurnOptions) -> helmsman.sessions.session.Session"
    ),
    "steer": "(session_id: str, text: str) -> None",
    "tasks.cancel": "(task: helmsman.tasks.model.Task, reason: str | None) -> tuple[helmsman.tasks.model.Task, str]",
    "tasks.cloud.apply": (
        "(task: helmsman.tasks.model.Task, directory: Path, attempt: int, allow_dirty: bool, digest: str | None) -> "
        "helmsman.model.cloud.CloudApplied"
    ),
    "tasks.cloud.cannot_cancel": "(task: helmsman.tasks.model.Task, reason: str | None) -> str",
    "tasks.cloud.environments": "() -> helmsman.model.cloud.CloudEnvironments",
    "tasks.cloud.now": "(task: helmsman.tasks.model.Task) -> helmsman.tasks.model.Task",
    "tasks.cloud.page": "(environment: str | None, cursor: str | None) -> helmsman.model.cloud.CloudPage",
    "tasks.cloud.results": "(task: helmsman.tasks.model.Task, attempt: int) -> helmsman.model.cloud.CloudResults",
    "tasks.cloud.submit": (
        "(instruction: str, environment: str | None, attempts: int, branch: str | None, model: str | None, directory: "
        "Path | None, idempotency_key: str | None) -> str"
    ),
    "tasks.cloud.usual_seconds": "() -> float | None",
    "tasks.find": "(reference: str) -> helmsman.tasks.model.Task",
    "tasks.get": "(reference: str) -> helmsman.tasks.model.Task",
    "tasks.in_cloud": (
        "(environment: str | None, cursor: str | None) -> tuple[Sequence[tuple[helmsman.model.cloud.CloudListed, "
        "helmsman.tasks.model.Task | None]], str | None]"
    ),
    "tasks.list": (
        "(status: Collection[Literal['pending', 'working', 'completed', 'failed', 'canceled', 'unknown']] | None, "
        "origin: Literal['local', 'cloud', 'fleet'] | None, agent: str | None, directory: str | None, limit: int, "
        "cursor: str | None) -> tuple[list[helmsman.tasks.model.Task], str | None]"
    ),
    "tasks.local.cancel": (
        "(task: helmsman.tasks.model.Task, reason: str | None) -> tuple[helmsman.tasks.model.Task, str]"
    ),
    "tasks.local.follow": "(task: helmsman.tasks.model.Task) -> helmsman.sessions.session.Session | None",
    "tasks.local.follow_up": (
        "(session_id: str, message: str, idempotency_key: str | None, **options: WorkOptions) -> str"
    ),
    "tasks.local.now": "(task: helmsman.tasks.model.Task) -> helmsman.tasks.model.Task",
    "tasks.local.run": (
        "(instruction: str, cwd: str | None, idempotency_key: str | None, **options: WorkOptions) -> str"
    ),
    "tasks.of_sessions": "(session_ids: Sequence[str]) -> dict[str, tuple[helmsman.tasks.model.Task, ...]]",
    "tasks.results": "(task: helmsman.tasks.model.Task, attempt: int) -> helmsman.capabilities.all_tasks.TaskResults",
    "tasks.wait": "(task: helmsman.tasks.model.Task, timeout: float | None) -> helmsman.tasks.model.Task",
    "tasks.with_key": "(key: str) -> helmsman.tasks.model.Task | None",
}
"""Parameters and results."""
