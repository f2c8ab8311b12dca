"""What Codex can do beyond start and say, one module a capability, for every front door alike.

`Helmsman.extras` has them: `helm.extras.reviews.start(…)`, `helm.extras.changes.apply(…)`. Each part is made when it is
first used.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helmsman.service import Helmsman


class Extras:
    """The rest of what Codex can do."""

    def __init__(self, helm: Helmsman) -> None:
        self._helm = helm
