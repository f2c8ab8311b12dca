"""Messages between a process that owns a port and the hub that serves on it.

hello    helmsman-http 1 ⇥ JSON: what is served and for whom; the socket comes with it
answers  JSON lines: {"serving": pid, "version": …}, {"refused": why}, {"error": text}, {"takenBack": cookie},
         {"keep": {key: value}} for the next hub, {"drop": [key]}
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from helmsman.httpd.listening import HttpOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

PROTOCOL: Final = "helmsman-http 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpHello:
    """Request to a hub to serve on a socket: the settings, and the valid cookies."""

    kind: str
    pid: int
    flags: Mapping[str, object]
    directory: str
    environment: Mapping[str, str]
    options: HttpOptions
    key: str
    taken_back: tuple[str, ...]
    door: str | None = None
    """The process's own name for itself, which no other has; None where it keeps nothing for hubs."""
    kept: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values that earlier hubs have stored in the process."""

    def encoded(self) -> bytes:
        content = asdict(self) | {
            "options": {
                **asdict(self.options),
                "other_names": sorted(self.options.other_names),
                "tls_certificate": _absolute(self.options.tls_certificate),
                "tls_key": _absolute(self.options.tls_key),
            }
        }
        return f"{PROTOCOL}\t{json.dumps(content)}\n".encode()

    @classmethod
    def decoded(cls, text: str) -> HttpHello:
        """Decode the hello of a process, possibly of another version."""
        content = _known(cls, json.loads(text))
        options = _known(HttpOptions, content["options"])
        for name in ("tls_certificate", "tls_key"):
            options[name] = None if options[name] is None else Path(options[name])
        options["other_names"] = frozenset(options["other_names"])
        return cls(**content | {"options": HttpOptions(**options), "taken_back": tuple(content["taken_back"])})


def _known(kind: type[HttpHello | HttpOptions], content: Mapping[str, Any]) -> dict[str, Any]:
    return {one.name: content[one.name] for one in fields(kind) if one.name in content}


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
