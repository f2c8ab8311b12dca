"""What an engine can do, as a value: doors show it, the service checks it, and what is refused is refused here."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from helmsman.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping


class Capability(Enum):
    """Something not every agent can do. `text` completes "it cannot …"."""

    # --- turns ---
    ASK = "ask", "ask before it acts"
    STEER = "steer", "take a message while it works"
    IMAGES = "images", "look at images"
    OUTPUT_SCHEMA = "output_schema", "keep to an output schema"
    REVIEW = "review", "give its findings of a review"
    PLAN = "plan", "plan first"
    SANDBOX = "sandbox", "hold its commands to a sandbox"
    USAGE = "usage", "tell what it has used"

    # --- sessions ---
    RESUME = "resume", "go on with an earlier session"
    FORK = "fork", "fork a session"
    FORK_AT_TURN = "fork_at_turn", "fork a session from an earlier turn"
    HISTORY = "history", "show the history of a session"
    ROLL_BACK = "rollback", "forget the last turns of a session"
    COMPACT = "compact", "compact a session"
    RENAME = "rename", "name a session"
    ARCHIVE = "archive", "archive a session"
    GOALS = "goals", "keep a goal for a session"
    DETACH = "detach", "go on without the process that started it"

    # --- about the agent ---
    MODELS = "models", "list its models"
    ACCOUNT = "account", "tell whose account it uses"

    def __init__(self, word: str, text: str) -> None:
        self.word = word
        self.text = text


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do. Of what is `lacking` it is said who can.

    Attributes:
        agent: The agent's name.
        engine: Who is meant, as a sentence would begin.
        lacking: What it cannot do, each with a sentence that says who can.
    """

    agent: str
    engine: str
    lacking: Mapping[Capability, str] = field(default_factory=dict[Capability, str])

    def __contains__(self, capability: Capability) -> bool:
        return capability not in self.lacking

    @property
    def words(self) -> list[str]:
        """What it can do, a word each."""
        return [capability.word for capability in Capability if capability in self]

    def require(self, *needed: Capability) -> None:
        """Go on only if the engine can do this.

        Raises:
            Unsupported: It cannot.
        """
        for capability in needed:
            if capability in self.lacking:
                raise self.refusal(capability)

    def refusal(self, capability: Capability) -> Unsupported:
        """That it cannot do this, and who can."""
        who_can = self.lacking.get(capability, "Use another agent.")
        return Unsupported(
            f"{self.engine} cannot {capability.text}. {who_can}", agent=self.agent, capability=capability.word
        )
