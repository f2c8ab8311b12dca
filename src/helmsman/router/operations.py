"""What a request can ask for. The tools' contract names these, and has no use for what reads the words."""

from __future__ import annotations

from typing import Literal

Operation = Literal["run", "check", "wait", "cancel", "results", "respond", "apply", "environments", "setup"]
