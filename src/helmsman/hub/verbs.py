"""Verbs that a program may ask of the hub: the nature of each, and its signature.

Made by `scripts/make_verbs.py` from the methods of the service that are declared as verbs (`helmsman.model.nature`), and
checked against them by the tests. Signatures are texts because a program needs few of them, and does not load the modules of
the others. `**` names a group of options (`helmsman.model.options`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from helmsman.model.nature import ACTS, ANSWERS, ARRANGES, BEGINS, INTERRUPTS, MOVES_CHANGES, READS, STARTS, STOPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.model.nature import Nature

VERBS: Final[Mapping[str, tuple[Nature, str]]] = {
    "capabilities": (READS, "(agent: str | None) -> helmsman.agents.protocol.Capabilities"),
    "events": (READS, "(session_id: str, cursor: int) -> tuple[int, list[tuple[str, str, str]]]"),
    "extras.account.check_remaining": (READS, "(percent: float, agent: str | None) -> tuple[str, ...]"),
    "extras.account.log_in": (
        ACTS,
        "(on_begun: Callable[[helmsman.agents.protocol.Login], None], with_code: bool, agent: str | None) -> str | None",
    ),
    "extras.account.models": (READS, "(agent: str | None) -> tuple[helmsman.agents.protocol.Model, ...]"),
    "extras.account.read": (READS, "(agent: str | None) -> helmsman.capabilities.account.AccountReport"),
    "extras.account.skills": (
        READS,
        "(directory: str | None, agent: str | None) -> helmsman.agents.protocol.SkillList",
    ),
    "extras.budgets.states": (
        READS,
        "(directory: str | None) -> tuple[helmsman.capabilities.budgets.BudgetState, ...]",
    ),
    "extras.changes.apply": (
        MOVES_CHANGES,
        "(session_id: str, allow_dirty: bool, digest: str | None, viewer: str | None, only: Mapping[str, "
        "Collection[int] | None] | None) -> helmsman.capabilities.changes.AppliedSession",
    ),
    "extras.changes.diff": (
        READS,
        "(session_id: str, viewer: str | None) -> helmsman.capabilities.changes.SessionDiff",
    ),
    "extras.changes.discard": (
        MOVES_CHANGES,
        "(session_id: str, losing: helmsman.git.tree_changes.Unsaved | None) -> helmsman.git.lifecycle.Discarded",
    ),
    "extras.changes.discard_part": (
        ACTS,
        "(session_id: str, only: Mapping[str, Collection[int] | None], digest: str) -> "
        "tuple[helmsman.git.diff.FileStat, ...]",
    ),
    "extras.changes.leftovers": (READS, "() -> tuple[helmsman.git.lifecycle.Leftover, ...]"),
    "extras.changes.prune": (
        ACTS,
        "(found: Sequence[helmsman.git.lifecycle.Leftover]) -> tuple[helmsman.git.lifecycle.Discarded, ...]",
    ),
    "extras.changes.stop_work": (ACTS, "(session_id: str) -> tuple[str, ...]"),
    "extras.changes.unsaved": (READS, "(session_id: str) -> helmsman.git.tree_changes.Unsaved"),
    "extras.changes.view": (
        READS,
        "(session_id: str, view: helmsman.git.tree_changes.DiffView, since: datetime | None) -> "
        "tuple[helmsman.capabilities.changes.SessionDiff, str]",
    ),
    "extras.changes.worktrees": (READS, "() -> tuple[helmsman.capabilities.changes.KnownWorktree, ...]"),
    "extras.configuration.in_force": (READS, "(directory: str, agent: str | None) -> helmsman.agents.protocol.InForce"),
    "extras.configuration.plan": (
        READS,
        "(edits: Sequence[helmsman.agents.protocol.ConfigEdit], agent: str | None) -> "
        "helmsman.capabilities.configuration.ConfigChange",
    ),
    "extras.configuration.read": (
        READS,
        "(directory: Path | None, agent: str | None) -> helmsman.agents.protocol.AgentConfig",
    ),
    "extras.configuration.write": (
        ACTS,
        "(change: helmsman.capabilities.configuration.ConfigChange, agent: str | None) -> str | None",
    ),
    "extras.fleet": (READS, "() -> Mapping[str, Any] | None"),
    "extras.limits.go_on": (ACTS, "(task: helmsman.tasks.model.Task, at: str | None) -> helmsman.tasks.model.Task"),
    "extras.message_queue.drop": (STOPS, "(session_id: str, task_id: str) -> None"),
    "extras.message_queue.move": (ARRANGES, "(session_id: str, task_id: str, place: int) -> None"),
    "extras.notices.for_pages": (READS, "() -> helmsman.capabilities.notices.ForPages"),
    "extras.notices.log": (READS, "(limit: int) -> Sequence[helmsman.notices.store.Delivery]"),
    "extras.notices.shown": (ACTS, "(notice_id: str) -> None"),
    "extras.notices.test": (ACTS, "(name: str | None) -> Sequence[helmsman.notices.store.Delivery]"),
    "extras.notices.ways": (READS, "() -> tuple[helmsman.capabilities.notices.ChannelStatus, ...]"),
    "extras.outcomes.start": (
        STARTS,
        "(wanted: helmsman.capabilities.outcomes.request.Wanted, idempotency_key: str | None) -> "
        "helmsman.tasks.model.Task",
    ),
    "extras.plans.start": (
        BEGINS,
        "(prompt: str, cwd: str | None, worktree: bool | helmsman.model.options.WorktreeOptions, min_remaining_percent:"
        " float | None, idempotency_key: str | None, on_task: Callable[[str], None] | None, tools: "
        "Sequence[helmsman.model.client_tools.ToolDefinition], **options: TurnOptions) -> "
        "helmsman.sessions.session.Session",
    ),
    "extras.publishing.allow": (ARRANGES, "(session_id: str, url: str) -> None"),
    "extras.publishing.answer": (
        ACTS,
        "(session_id: str, pull_request: str, comment: helmsman.capabilities.forge.Comment, text: str) -> None",
    ),
    "extras.publishing.commit": (
        ACTS,
        "(session_id: str, message: str, digest: str, applied: bool) -> tuple[helmsman.git.tree_changes.CommitMade, "
        "...]",
    ),
    "extras.publishing.handled": (ARRANGES, "(session_id: str, ids: Sequence[str]) -> None"),
    "extras.publishing.issue_prompt": (READS, "(reference: str, directory: str) -> tuple[str, str]"),
    "extras.publishing.link": (ARRANGES, "(session_id: str, issue: str) -> None"),
    "extras.publishing.look": (READS, "(session_id: str, applied: bool) -> helmsman.capabilities.publishing.ToCommit"),
    "extras.publishing.news": (
        READS,
        "(session_id: str, authors: Collection[str]) -> tuple[helmsman.capabilities.publishing.PullRequestNews, ...]",
    ),
    "extras.publishing.open": (
        ACTS,
        "(session_id: str, target: helmsman.capabilities.publishing.ToPublish, title: str, text: str, draft: bool) -> "
        "str",
    ),
    "extras.publishing.push": (
        ACTS,
        "(session_id: str, targets: Sequence[helmsman.capabilities.publishing.ToPublish]) -> None",
    ),
    "extras.publishing.targets": (
        READS,
        "(session_id: str, base: str | None, remote: str | None, branch: str | None) -> "
        "tuple[helmsman.capabilities.publishing.ToPublish, ...]",
    ),
    "extras.reviews.report": (READS, "(session_id: str) -> helmsman.capabilities.reviews.VerifiedReview | None"),
    "extras.reviews.start": (
        BEGINS,
        "(target: helmsman.model.options.ReviewTarget | None, cwd: str | None, session_id: str | None, instructions: "
        "str | None, detached: bool, agent: str | None, model: str | None, on_task: Callable[[str], None] | None, "
        "**safety: SafetyOptions) -> helmsman.capabilities.reviews.BegunReview",
    ),
    "extras.rewinding.preview": (
        READS,
        "(session_id: str, to: int | str | None, part: Literal['both', 'files', 'conversation'] | None, undo: bool) -> "
        "helmsman.capabilities.rewinding.Rewind",
    ),
    "extras.rewinding.rewind": (
        ACTS,
        "(session_id: str, digest: str, to: int | str | None, part: Literal['both', 'files', 'conversation'] | None, "
        "undo: bool) -> helmsman.capabilities.rewinding.Rewind",
    ),
    "extras.schedules.add": (
        ACTS,
        "(prompt: str, cron: str | None, every: str | None, at: str | None, timezone: str | None, cwd: str | None, "
        "missed: Literal['run', 'skip'], overlap: bool, worktree: bool, **options: WorkOptions) -> "
        "helmsman.schedules.store.Schedule",
    ),
    "extras.schedules.confirm": (ACTS, "(schedule_id: str) -> helmsman.schedules.store.Schedule"),
    "extras.schedules.get": (READS, "(schedule_id: str) -> helmsman.schedules.store.Schedule"),
    "extras.schedules.list": (READS, "() -> tuple[helmsman.schedules.store.Schedule, ...]"),
    "extras.schedules.pause": (ACTS, "(schedule_id: str) -> helmsman.schedules.store.Schedule"),
    "extras.schedules.remove": (ACTS, "(schedule_id: str) -> helmsman.schedules.store.Schedule"),
    "extras.schedules.resume": (ACTS, "(schedule_id: str) -> helmsman.schedules.store.Schedule"),
    "extras.schedules.run_now": (ACTS, "(schedule_id: str) -> helmsman.tasks.model.Task"),
    "extras.schedules.runs": (
        READS,
        "(schedule_id: str, limit: int) -> tuple[helmsman.schedules.store.ScheduleRun, ...]",
    ),
    "extras.search.find": (
        READS,
        "(words: str, agent: str | None, directory: str | None, limit: int, include_archived: bool, patience: float) ->"
        " helmsman.capabilities.search.SearchResult",
    ),
    "extras.upkeep.archive": (ACTS, "(session_id: str) -> None"),
    "extras.upkeep.clear_goal": (ACTS, "(session_id: str) -> None"),
    "extras.upkeep.compact": (BEGINS, "(session_id: str) -> helmsman.sessions.session.Session"),
    "extras.upkeep.goal": (READS, "(session_id: str) -> helmsman.agents.protocol.Goal | None"),
    "extras.upkeep.own_terminal": (READS, "(session_id: str) -> helmsman.agents.protocol.OwnTerminal"),
    "extras.upkeep.rename": (ACTS, "(session_id: str, name: str) -> helmsman.sessions.session.Session"),
    "extras.upkeep.roll_back": (ACTS, "(session_id: str, turns: int) -> helmsman.sessions.session.Session"),
    "extras.upkeep.set_goal": (ACTS, "(session_id: str, objective: str) -> helmsman.agents.protocol.Goal | None"),
    "extras.upkeep.unarchive": (ACTS, "(session_id: str) -> helmsman.sessions.session.Session"),
    "extras.usage.of_session": (READS, "(session_id: str) -> list[helmsman.sessions.history.SpentTurn]"),
    "extras.usage.report": (
        READS,
        "(since: str | None, group_by: Literal['day', 'model', 'directory', 'session', 'agent'], agent: str | None) -> "
        "helmsman.capabilities.usage_report.UsageReport",
    ),
    "extras.usage.spent_since": (READS, "(since: datetime) -> list[helmsman.capabilities.usage_report.Spending]"),
    "extras.workspaces.known": (READS, "(repository: str, commits: Sequence[str]) -> list[str]"),
    "extras.workspaces.place": (
        STOPS,
        "(workspace: helmsman.git.bundles.PackedTree) -> helmsman.git.remote_trees.Placed",
    ),
    "extras.workspaces.put": (STOPS, "(workspace_id: str, part: str, offset: int, data: bytes) -> None"),
    "extras.workspaces.read": (READS, "(workspace_id: str, offset: int) -> bytes"),
    "extras.workspaces.remove": (STOPS, "(workspace_id: str) -> None"),
    "extras.workspaces.result": (READS, "(session_id: str) -> helmsman.git.remote_trees.Result"),
    "extras.workspaces.stop_work": (ACTS, "(session_id: str) -> tuple[str, ...]"),
    "fork": (
        BEGINS,
        "(session_id: str, message: str | None, from_turn: int | str | None, **options: StartOptions) -> "
        "helmsman.sessions.session.Session",
    ),
    "give_up": (ACTS, "(session_id: str, question_id: str) -> None"),
    "hand": (ACTS, "(session_id: str, to: str | None) -> helmsman.sessions.session.Session"),
    "history": (READS, "(session_id: str) -> tuple[helmsman.model.events.PastTurn, ...]"),
    "installed": (READS, "(agent: str) -> helmsman.agents.found_programs.Installed | None"),
    "interrupt": (INTERRUPTS, "(session_id: str) -> helmsman.sessions.session.Session"),
    "last_statuses": (
        READS,
        "(sessions: Sequence[tuple[helmsman.agents.protocol.SessionInfo, Sequence[helmsman.tasks.model.Task]]]) -> "
        "dict[str, Literal['active', 'awaiting_approval', 'done', 'error', 'interrupted']]",
    ),
    "list": (
        READS,
        "(directory: str | None, query: str | None, limit: int, cursor: str | None, include_archived: bool, "
        "include_sub_agents: bool, agent: str | None) -> tuple[list[helmsman.agents.protocol.SessionInfo], str | None]",
    ),
    "respond": (
        ANSWERS,
        "(session_id: str, question_id: str, answers: Sequence[str], by: helmsman.model.answered_by.AnsweredBy) -> "
        "helmsman.sessions.session.Session",
    ),
    "say": (
        STARTS,
        "(session_id: str, message: str, when_busy: Literal['error', 'steer', 'queue'], on_task: Callable[[str], None] "
        "| None, tools: Sequence[helmsman.model.client_tools.ToolDefinition], **options: TurnOptions) -> "
        "helmsman.sessions.session.Session",
    ),
    "session": (READS, "(session_id: str) -> helmsman.sessions.session.Session"),
    "start": (
        STARTS,
        "(prompt: str, cwd: str | None, worktree: bool | helmsman.model.options.WorktreeOptions, min_remaining_percent:"
        " float | None, idempotency_key: str | None, on_task: Callable[[str], None] | None, tools: "
        "Sequence[helmsman.model.client_tools.ToolDefinition], carried: helmsman.steering.opening.Carried | None, "
        "**options: TurnOptions) -> helmsman.sessions.session.Session",
    ),
    "steer": (ACTS, "(session_id: str, text: str) -> None"),
    "tasks.cancel": (
        ACTS,
        "(task: helmsman.tasks.model.Task, reason: str | None) -> tuple[helmsman.tasks.model.Task, str]",
    ),
    "tasks.cloud.apply": (
        MOVES_CHANGES,
        "(task: helmsman.tasks.model.Task, directory: Path, attempt: int, allow_dirty: bool, digest: str | None) -> "
        "helmsman.model.cloud.CloudApplied",
    ),
    "tasks.cloud.cannot_cancel": (READS, "(task: helmsman.tasks.model.Task, reason: str | None) -> str"),
    "tasks.cloud.environments": (READS, "() -> helmsman.model.cloud.CloudEnvironments"),
    "tasks.cloud.now": (READS, "(task: helmsman.tasks.model.Task) -> helmsman.tasks.model.Task"),
    "tasks.cloud.page": (READS, "(environment: str | None, cursor: str | None) -> helmsman.model.cloud.CloudPage"),
    "tasks.cloud.results": (
        READS,
        "(task: helmsman.tasks.model.Task, attempt: int) -> helmsman.model.cloud.CloudResults",
    ),
    "tasks.cloud.submit": (
        ACTS,
        "(instruction: str, environment: str | None, attempts: int, branch: str | None, model: str | None, directory: "
        "Path | None, idempotency_key: str | None) -> str",
    ),
    "tasks.cloud.usual_seconds": (READS, "() -> float | None"),
    "tasks.find": (READS, "(reference: str) -> helmsman.tasks.model.Task"),
    "tasks.get": (READS, "(reference: str) -> helmsman.tasks.model.Task"),
    "tasks.in_cloud": (
        READS,
        "(environment: str | None, cursor: str | None) -> tuple[Sequence[tuple[helmsman.model.cloud.CloudListed, "
        "helmsman.tasks.model.Task | None]], str | None]",
    ),
    "tasks.list": (
        READS,
        "(status: Collection[Literal['pending', 'working', 'completed', 'failed', 'canceled', 'unknown']] | None, "
        "origin: Literal['local', 'cloud', 'fleet'] | None, agent: str | None, directory: str | None, limit: int, "
        "cursor: str | None) -> tuple[list[helmsman.tasks.model.Task], str | None]",
    ),
    "tasks.local.cancel": (
        ACTS,
        "(task: helmsman.tasks.model.Task, reason: str | None) -> tuple[helmsman.tasks.model.Task, str]",
    ),
    "tasks.local.follow": (READS, "(task: helmsman.tasks.model.Task) -> helmsman.sessions.session.Session | None"),
    "tasks.local.follow_up": (
        STARTS,
        "(session_id: str, message: str, idempotency_key: str | None, **options: WorkOptions) -> str",
    ),
    "tasks.local.now": (READS, "(task: helmsman.tasks.model.Task) -> helmsman.tasks.model.Task"),
    "tasks.local.run": (
        STARTS,
        "(instruction: str, cwd: str | None, idempotency_key: str | None, **options: WorkOptions) -> str",
    ),
    "tasks.of_sessions": (READS, "(session_ids: Sequence[str]) -> dict[str, tuple[helmsman.tasks.model.Task, ...]]"),
    "tasks.results": (
        READS,
        "(task: helmsman.tasks.model.Task, attempt: int) -> helmsman.capabilities.all_tasks.TaskResults",
    ),
    "tasks.wait": (READS, "(task: helmsman.tasks.model.Task, timeout: float | None) -> helmsman.tasks.model.Task"),
    "tasks.with_key": (READS, "(key: str) -> helmsman.tasks.model.Task | None"),
}
READING: Final = frozenset(verb for verb, (nature, _) in VERBS.items() if nature.reads)
