"""Rewinds as front ends show them, before and after they are applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from helmsman.base.json_values import present
from helmsman.base.sanitize import one_line
from helmsman.base.truncate import cut, listed
from helmsman.shapes.rendering import fields_as_dict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from helmsman.capabilities.rewinding import Rewind

_PROMPT_CHARS: Final = 80
_NAMED: Final = 20
_LEFT: Final = {
    "left": "Left as they are, since no snapshot has them",
    "nested": "Git repositories inside, which are left as they are",
}


def rewind_as_dict(rewind: Rewind, *, done: bool) -> dict[str, Any]:
    """Return a rewind. `done` says whether it was applied or is a preview."""
    diff, turn = rewind.diff, rewind.turn
    shown: dict[str, Any] = {
        "sessionId": rewind.session_id,
        "done": done,
        "part": rewind.part,
        "undo": rewind.is_undo or None,
        "nothing": rewind.is_nothing or None,
        "turn": None if turn is None else turn.number,
        "prompt": None if turn is None else turn.prompt,
        "forgotten": [fields_as_dict(one) for one in rewind.forgotten],
        "directory": None if rewind.work_tree is None else str(rewind.work_tree),
        "files": None if diff is None else [fields_as_dict(file) for file in diff.files],
        "changedSince": None if rewind.changed_since is None else list(rewind.changed_since),
        "left": list(rewind.left) or None,
        "nested": None if diff is None else list(diff.nested) or None,
        "conversation": rewind.conversation,
        "notes": list(rewind.notes),
        "diff": None if diff is None else diff.text,
        "digest": rewind.digest,
    }
    return present(shown)


def rewind_in_words(shown: Mapping[str, Any]) -> list[str]:
    """Render a rewind as lines for people."""
    done, session_id, files = shown["done"], shown["sessionId"], shown.get("files")
    notes = [str(note) for note in shown["notes"]]
    if shown.get("nothing"):
        return ["There is nothing to take back.", *notes]
    lines = [f"The rewind of session {session_id} {'was' if done else 'will be'} taken back."]
    if "turn" in shown:
        turn = f"turn {shown['turn']} ({_short(shown['prompt'])})"
        lines = [
            f"Session {session_id} is back to before {turn}. Lost:"
            if done
            else f"This takes session {session_id} back to before {turn}. You would lose:"
        ]
    lines += [f"  turn {turn['number']}: {_short(turn['prompt'])}" for turn in shown["forgotten"]]
    since = {*shown.get("changedSince", ())}
    if files is not None:
        lines += [f"  {_file(file, since)}" for file in files] or ["  no file changes"]
    for key, words in _LEFT.items():
        if key in shown:
            lines.append(f"{words}: {_named(shown[key])}.")
    lines += notes
    if done and not shown.get("undo"):
        lines.append(f"To take this back: helmsman session rewind {session_id} --undo")
    return lines


def _file(file: Mapping[str, Any], since: set[str]) -> str:
    old_path = file.get("oldPath")
    # Paths may contain line breaks and control characters.
    path = one_line(file["path"] if old_path is None else f"{old_path} → {file['path']}")
    lines = f"+{file['added']} -{file['removed']}" if "added" in file else "binary"
    # For a rename, a change at either path counts.
    theirs = "  (changed after the last turn, not by this session)" if {file["path"], old_path} & since else ""
    return f"{file['kind']:<8}  {path}  {lines}{theirs}"


def _named(paths: Sequence[str]) -> str:
    return listed(map(one_line, paths), _NAMED)


def _short(prompt: str) -> str:
    return cut(one_line(prompt), _PROMPT_CHARS)
