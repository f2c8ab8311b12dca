"""The service that operations call: the core with the capabilities that are built on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helmsman.steering.core import Steering

if TYPE_CHECKING:
    from helmsman.capabilities import Extras
    from helmsman.capabilities.all_tasks import Tasks


class AgentService(Steering):
    """The core and what stands on it. `helmsman.service.Helmsman` is one, in this process or by the hub."""

    @property
    def tasks(self) -> Tasks:
        """All tasks: those of this service, those of others on this machine, and those in the cloud."""
        raise NotImplementedError

    @property
    def extras(self) -> Extras:
        """What agents can do beyond start and say."""
        raise NotImplementedError
