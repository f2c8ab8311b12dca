"""Effects of a call, and whether it may be repeated.

Every operation has a nature, and so has every verb that a program may ask of the hub: a method of the service that is not
declared as one cannot be asked. This module imports little: every program that connects to a hub loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeVar

from helmsman.base.structs import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable

Repeat = Literal["freely", "finds out", "never"]
NATURE: Final = "__nature__"
"""Attribute of a method that is a verb."""


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
        begins_turn: It begins a turn, and its client waits for the end unless it says otherwise.
    """

    reads: bool = False
    destroys: bool = False
    reaches_out: bool = False
    idempotent: bool = False
    repeat: Repeat = "never"
    completes: bool = False
    begins_turn: bool = False


READS: Final = Nature(reads=True, idempotent=True, repeat="freely")
ACTS: Final = Nature(destroys=True, reaches_out=True)
BEGINS: Final = replace(ACTS, begins_turn=True)
STARTS: Final = replace(BEGINS, repeat="finds out")  # the task that it creates tells whether it ran
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


FunctionT = TypeVar("FunctionT", bound="Callable[..., object]")


def verb(nature: Nature) -> Callable[[FunctionT], FunctionT]:
    """Declare a method of the service as a verb, which programs may ask of the hub. `helmsman.hub.verbs` lists them."""

    def declare(method: FunctionT) -> FunctionT:
        setattr(method, NATURE, nature)
        return method

    return declare
