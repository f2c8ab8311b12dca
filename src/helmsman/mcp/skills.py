"""MCP extension `io.modelcontextprotocol/skills` (SEP-2640): skills of the plugin, for clients without it.

`skills/list` and `skills/get` give the front matter and the digests of the files; `resources/read` gives the files.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman.mcp.elicitation import Context

EXTENSION: Final = "io.modelcontextprotocol/skills"
SCHEME: Final = "skill://"
SKILLS: Final = Path(__file__).parents[1] / "plugin" / "helmsman" / "skills"
_TTL_MS: Final = 300_000
_RESULT: Final = {"resultType": "complete", "ttlMs": _TTL_MS, "cacheScope": "public"}


class GetSkillParams(types.RequestParams):
    uri: str


@dataclass(frozen=True, slots=True)
class McpSkill:
    """Skill of one file, `SKILL.md`."""

    name: str
    front_matter: Mapping[str, str]
    text: str

    @property
    def uri(self) -> str:
        return f"{SCHEME}{self.name}/SKILL.md"

    def listed(self) -> dict[str, Any]:
        # Digest and size are of the raw bytes that `resources/read` serves.
        content = self.text.encode()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        return {
            "uri": self.uri,
            "frontmatter": dict(self.front_matter),
            "resources": [{"uri": self.uri, "digest": digest, "size": len(content)}],
        }


@cache
def skills() -> Mapping[str, McpSkill]:
    """Return the skills by URI."""
    found = (_read(path) for path in sorted(SKILLS.glob("*/SKILL.md")))
    return {skill.uri: skill for skill in found}


def _read(path: Path) -> McpSkill:
    # Bytes, because text mode would change line ends, and the digest would not match.
    text = path.read_bytes().decode()
    # Our own skills have only plain and quoted values, so no YAML parser is needed.
    _, head, _ = text.split("---\n", 2)
    pairs = (line.split(": ", 1) for line in head.splitlines())
    matter = {key: json.loads(value) if value.startswith('"') else value for key, value in pairs}
    return McpSkill(path.parent.name, matter, text)


def skill_content(uri: str) -> types.TextResourceContents:
    """Return the file of a skill.

    Raises:
        MCPError: No skill has this URI.
    """
    return types.TextResourceContents(uri=uri, mime_type="text/markdown", text=_found(uri).text)


async def list_skills(_context: Context, _params: types.PaginatedRequestParams) -> dict[str, Any]:
    return {**_RESULT, "skills": [skill.listed() for skill in skills().values()]}


async def get_skill(_context: Context, params: GetSkillParams) -> dict[str, Any]:
    return {**_RESULT, "skill": _found(params.uri).listed()}


def _found(uri: str) -> McpSkill:
    skill = skills().get(uri)
    if skill is None:
        raise MCPError(types.INVALID_PARAMS, f"There is no skill {uri}.", {"uri": uri})
    return skill
