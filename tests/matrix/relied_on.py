"""Every method and field of `codex app-server` that Helmsman relies on.

What is sent and read in `agents/codex` is written down here once more, on purpose: the drift check compares this list
with the schema that each Codex generates of itself, and so notices when a new version renames or drops something.
"""

from __future__ import annotations

from dataclasses import dataclass

from helmsman.agents.codex.features import Feature, Version


@dataclass(frozen=True)
class Since:
    """The first version that has something Helmsman takes where it comes, and asks no binary for."""

    version: str

    def is_in(self, version: Version) -> bool:
        return version >= Version.parse(self.version)


@dataclass(frozen=True)
class Uses:
    """The fields used of a message; `feature` limits it to the versions that have it."""

    fields: tuple[str, ...] = ()
    answer: str | None = None
    answer_fields: tuple[str, ...] = ()
    feature: Feature | Since | None = None
    feature_fields: tuple[tuple[str, Feature | Since], ...] = ()


POLICY = ("thread", "model", "cwd", "approvalPolicy", "sandbox")
OPEN = ("cwd", "model", "sandbox", "approvalPolicy", "config")
INSTRUCTIONS = ("baseInstructions", "developerInstructions")

REQUESTS = {
    "initialize": Uses(("clientInfo",)),  # 0.93 takes `capabilities` too, and does not say so in its schema
    "thread/start": Uses((*OPEN, *INSTRUCTIONS), "ThreadStartResponse", POLICY),
    "thread/resume": Uses(
        ("threadId", *OPEN, *INSTRUCTIONS),
        "ThreadResumeResponse",
        POLICY,
        feature_fields=(("excludeTurns", Since("0.125.0")),),
    ),
    "thread/turns/list": Uses(("threadId", "limit", "itemsView"), feature=Feature.REMOTE),  # to adopt a session
    "thread/fork": Uses(
        ("threadId", *OPEN),
        "ThreadForkResponse",
        POLICY,
        feature_fields=(("lastTurnId", Feature.FORK_AT_TURN),),
    ),
    "thread/read": Uses(("threadId", "includeTurns"), "ThreadReadResponse", ("thread",)),
    "thread/loaded/list": Uses((), "ThreadLoadedListResponse", ("data",)),
    "thread/archive": Uses(("threadId",)),
    "thread/unarchive": Uses(("threadId",)),
    "thread/name/set": Uses(("threadId", "name")),
    "thread/compact/start": Uses(("threadId",), feature=Feature.COMPACT),
    "thread/rollback": Uses(("threadId", "numTurns"), feature=Feature.ROLLBACK),
    "thread/revert": Uses(("threadId", "beforeTurnId"), feature=Feature.REVERT),
    "thread/goal/get": Uses(("threadId",), "ThreadGoalGetResponse", ("goal",), feature=Feature.GOALS),
    "thread/goal/set": Uses(
        ("threadId", "objective", "status"), "ThreadGoalSetResponse", ("goal",), feature=Feature.GOALS
    ),
    "thread/goal/clear": Uses(("threadId",), feature=Feature.GOALS),
    "thread/unsubscribe": Uses(("threadId",), feature=Feature.UNSUBSCRIBE),
    "thread/backgroundTerminals/clean": Uses(("threadId",), feature=Feature.BACKGROUND_TERMINALS),
    "turn/start": Uses(
        ("threadId", "input", "effort", "outputSchema", "sandboxPolicy", "approvalPolicy", "collaborationMode"),
        "TurnStartResponse",
        ("turn",),
        feature_fields=(("runtimeWorkspaceRoots", Feature.WORKSPACE_ROOTS),),
    ),
    "turn/steer": Uses(("threadId", "expectedTurnId", "input"), feature=Feature.STEER),
    "turn/interrupt": Uses(("threadId", "turnId")),
    "review/start": Uses(("threadId", "target"), "ReviewStartResponse", ("turn",)),
    "model/list": Uses((), "ModelListResponse", ("data",)),
    "mcpServerStatus/list": Uses((), "ListMcpServerStatusResponse", ("data",)),
    "account/read": Uses((), "GetAccountResponse", ("account", "requiresOpenaiAuth")),
    "account/rateLimits/read": Uses((), "GetAccountRateLimitsResponse", ("rateLimits",)),
    "account/login/start": Uses((), "LoginAccountResponse"),
    "account/login/cancel": Uses(("loginId",)),
    "config/read": Uses(("includeLayers", "cwd"), "ConfigReadResponse", ("config", "layers")),
    "config/value/write": Uses(
        ("keyPath", "value", "mergeStrategy", "expectedVersion"), "ConfigWriteResponse", ("overriddenMetadata",)
    ),
    "config/batchWrite": Uses(("edits", "expectedVersion"), "ConfigWriteResponse", ("overriddenMetadata",)),
    "skills/list": Uses(("cwds",), "SkillsListResponse", ("data",)),
}

WHERE = ("threadId", "turnId")

NOTIFICATIONS = {
    "turn/started": Uses(("threadId", "turn")),
    "turn/completed": Uses(("threadId", "turn")),
    "turn/plan/updated": Uses((*WHERE, "plan", "explanation")),
    "turn/diff/updated": Uses((*WHERE, "diff")),
    "item/started": Uses((*WHERE, "item")),
    "item/completed": Uses((*WHERE, "item")),
    "item/agentMessage/delta": Uses((*WHERE, "itemId", "delta")),
    "item/reasoning/summaryTextDelta": Uses((*WHERE, "itemId", "delta")),
    "item/commandExecution/outputDelta": Uses((*WHERE, "itemId", "delta")),
    "item/plan/delta": Uses((*WHERE, "itemId", "delta")),
    "thread/tokenUsage/updated": Uses((*WHERE, "tokenUsage")),
    "account/rateLimits/updated": Uses(("rateLimits",)),
    "account/login/completed": Uses(("loginId", "success", "error")),
    "error": Uses((*WHERE, "error", "willRetry")),
    "configWarning": Uses(("summary",)),
    "deprecationNotice": Uses(("summary",)),
    "serverRequest/resolved": Uses(("threadId", "requestId"), feature=Since("0.107.0")),
    "thread/settings/updated": Uses(("threadId",), feature=Since("0.133.0")),
    "thread/name/updated": Uses(("threadId", "threadName")),
}

QUESTIONS = {
    "item/commandExecution/requestApproval": Uses((*WHERE, "itemId", "command", "cwd", "reason")),
    "item/fileChange/requestApproval": Uses((*WHERE, "itemId", "reason", "grantRoot")),
    "item/permissions/requestApproval": Uses((*WHERE, "itemId", "reason", "permissions"), feature=Since("0.113.0")),
    "item/tool/requestUserInput": Uses((*WHERE, "itemId", "questions")),
    "item/tool/call": Uses((*WHERE, "callId", "tool", "arguments")),
    "mcpServer/elicitation/request": Uses(("threadId", "turnId", "serverName"), feature=Since("0.111.0")),
    "execCommandApproval": Uses(("conversationId", "callId", "command", "cwd", "reason")),
    "applyPatchApproval": Uses(("conversationId", "callId", "fileChanges", "reason", "grantRoot")),
}

ITEMS = {
    "userMessage": ("id", "content"),
    "agentMessage": ("id", "text"),
    "reasoning": ("id", "summary", "content"),
    "commandExecution": ("id", "command", "cwd", "status", "aggregatedOutput", "exitCode", "durationMs"),
    "fileChange": ("id", "changes", "status"),
    "mcpToolCall": ("id", "server", "tool", "arguments", "status", "result", "error"),
    "webSearch": ("id", "query"),
    "imageView": ("id", "path"),
    "collabAgentToolCall": ("id", "tool", "status", "receiverThreadIds", "prompt", "agentsStates"),
    "plan": ("id", "text"),
    "enteredReviewMode": ("id", "review"),
    "exitedReviewMode": ("id", "review"),
}
