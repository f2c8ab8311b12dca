"""Effects of a call, and whether it may be repeated.

Every operation has a nature, and so has every verb that a program may ask of the hub: what is not listed here cannot be
asked. The parts of the library (`Helmsman.tasks`, `Helmsman.extras`) and the lists of what changes nothing or may run again
are derived from it. This module imports little: every program that connects to a hub loads it.
"""

from __future__ import annotations

from typing import Final, Literal

from helmsman.base.structs import Value, replace

Repeat = Literal["freely", "finds out", "never"]


class Nature(Value, frozen=True):
    """Effect of a call.

    Attributes:
        reads: It changes nothing.
        destroys: It may change or remove something for good.
        reaches_out: Its effect may reach beyond this machine, as an agent's work does.
        idempotent: Calling it twice has the same result as calling it once.
        repeat: Whether it may run again after a crash. `freely`: a second run does no more than the first. `finds out`: a
            second run finds what the first one did, by its task, its answer or the working tree. `never`: it runs once.
        completes: It runs to its end even if the client disconnects.
    """

    reads: bool = False
    destroys: bool = False
    reaches_out: bool = False
    idempotent: bool = False
    repeat: Repeat = "never"
    completes: bool = False


READS: Final = Nature(reads=True, idempotent=True, repeat="freely")
ACTS: Final = Nature(destroys=True, reaches_out=True)
STARTS: Final = replace(ACTS, repeat="finds out")  # the task that it creates tells whether it ran
# A review changes no file, but the agent that reviews reaches its provider.
REVIEWS: Final = Nature(reaches_out=True)
STARTS_REVIEW: Final = replace(REVIEWS, repeat="finds out")
ANSWERS: Final = replace(ACTS, repeat="finds out")  # the first answer counts, and its author is recorded
STOPS: Final = Nature(destroys=True, idempotent=True, repeat="freely")
# Agent and commands must have stopped when it returns, so a client that leaves must not cut it short.
INTERRUPTS: Final = replace(STOPS, completes=True)
# A repeated rollback would take back further turns.
FORGETS: Final = Nature(destroys=True)
ARRANGES: Final = Nature(idempotent=True, repeat="freely")  # changes how something is stored, and loses nothing
MOVES_CHANGES: Final = replace(STOPS, repeat="finds out")  # the working tree tells whether it ran

# Verbs that no MCP tool offers are here too: the hub refuses a verb without a nature.
_BY_VERB: Final = {
    **dict.fromkeys(
        (
            *("installed", "capabilities", "history", "list", "session", "last_statuses"),
            *(
                "tasks.find",
                "tasks.get",
                "tasks.with_key",
                "tasks.list",
                "tasks.of_sessions",
                "tasks.wait",
                "tasks.results",
                "tasks.in_cloud",
            ),
            *(
                "extras.account.models",
                "extras.account.read",
                "extras.account.check_remaining",
                "extras.account.skills",
            ),
            *("extras.configuration.read", "extras.configuration.in_force", "extras.configuration.plan"),
            *(
                "extras.changes.diff",
                "extras.changes.view",
                "extras.changes.unsaved",
                "extras.changes.worktrees",
                "extras.changes.leftovers",
            ),
            "extras.rewinding.preview",
            *("extras.publishing.look", "extras.publishing.targets", "extras.publishing.news"),
            "extras.publishing.issue_prompt",
            *("extras.usage.report", "extras.budgets.states", "extras.reviews.report", "extras.upkeep.goal"),
            "extras.upkeep.own_terminal",
            "extras.search.find",
            *("extras.notices.ways", "extras.notices.log"),
            *("extras.schedules.list", "extras.schedules.get", "extras.schedules.runs"),
            *("extras.workspaces.known", "extras.workspaces.result", "extras.workspaces.read"),
            *("tasks.cloud.results", "tasks.cloud.environments", "tasks.cloud.usual_seconds"),
            *(
                "tasks.local.now",
                "tasks.local.follow",
                "tasks.cloud.now",
                "tasks.cloud.page",
                "tasks.cloud.cannot_cancel",
            ),
            *("extras.fleet", "extras.notices.for_pages", "extras.usage.of_session", "extras.usage.spent_since"),
        ),
        READS,
    ),
    **dict.fromkeys(
        (
            *("steer", "give_up", "fork", "hand"),
            *("tasks.cancel", "tasks.local.cancel", "tasks.cloud.submit"),
            *("extras.account.log_in", "extras.configuration.write", "extras.limits.go_on"),
            *("extras.changes.discard_part", "extras.changes.prune", "extras.changes.stop_work"),
            *("extras.notices.shown", "extras.notices.test", "extras.plans.start", "extras.reviews.start"),
            *(
                "extras.publishing.answer",
                "extras.publishing.commit",
                "extras.publishing.open",
                "extras.publishing.push",
            ),
            *("extras.rewinding.rewind", "extras.workspaces.stop_work"),
            *("extras.schedules.add", "extras.schedules.confirm", "extras.schedules.pause", "extras.schedules.remove"),
            *("extras.schedules.resume", "extras.schedules.run_now"),
            *("extras.upkeep.archive", "extras.upkeep.clear_goal", "extras.upkeep.compact", "extras.upkeep.rename"),
            *("extras.upkeep.roll_back", "extras.upkeep.set_goal", "extras.upkeep.unarchive"),
        ),
        ACTS,
    ),
    **dict.fromkeys(("start", "say", "tasks.local.run", "tasks.local.follow_up", "extras.outcomes.start"), STARTS),
    **dict.fromkeys(("respond",), ANSWERS),
    **dict.fromkeys(("extras.changes.apply", "extras.changes.discard", "tasks.cloud.apply"), MOVES_CHANGES),
    **dict.fromkeys(("interrupt",), INTERRUPTS),
    **dict.fromkeys(("extras.message_queue.drop",), STOPS),
    **dict.fromkeys(("extras.message_queue.move",), ARRANGES),
    **dict.fromkeys(("extras.publishing.allow", "extras.publishing.handled", "extras.publishing.link"), ARRANGES),
    **dict.fromkeys(("extras.workspaces.put", "extras.workspaces.place", "extras.workspaces.remove"), STOPS),
}


def nature_of(verb: str) -> Nature:
    """Return the nature of a verb that programs ask of the hub."""
    return _BY_VERB[verb]


VERBS: Final = frozenset(_BY_VERB)
READING: Final = frozenset(verb for verb, nature in _BY_VERB.items() if nature.reads)
