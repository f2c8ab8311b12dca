"""Files of sessions on their way to another machine: whole lines, in order, past nothing that was there, or not at all."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from helmsman.agents.codex.features import Version
from helmsman.agents.codex.storage import NAMES, SESSIONS, CodexTranscripts
from helmsman.agents.transcripts import NAME, PART_BYTES, OneFile, TranscriptPart
from helmsman.errors import CannotMove

ID, PARENT = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
NEW, OLD = Version.parse("0.163.0"), Version.parse("0.130.0")


def name_of(session_id: str) -> str:
    return f"rollout-2026-01-02T03-04-05-{session_id}.jsonl"


def first_line(session_id: str, version: str = "0.130.0", **more: Any) -> str:
    return json.dumps({"type": "session_meta", "payload": {"id": session_id, "cli_version": version, **more}}) + "\n"


def write(home: Path, session_id: str, text: str) -> Path:
    path = home / SESSIONS / "2026" / "01" / "02" / name_of(session_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def all_of(transcripts: CodexTranscripts | OneFile, session_id: str = ID) -> list[TranscriptPart]:
    stored: dict[str, int] = {}
    found: list[TranscriptPart] = []
    while parts := transcripts.tails(session_id, stored):
        for part in parts:
            stored[part.file] = part.start + len(part.data)
        found += parts
    return found


def test_whole_lines_travel_in_pieces_and_the_one_being_written_does_not(tmp_path: Path) -> None:
    lines = first_line(ID) + "".join(f'{{"number": {number}}}\n' for number in range(60_000))
    path = write(tmp_path, ID, lines + '{"half')
    parts = all_of(CodexTranscripts(tmp_path, NEW))
    assert len(parts) > 2
    assert max(len(part.data) for part in parts) < 2 * PART_BYTES
    assert b"".join(part.data for part in parts).decode() == lines
    there = CodexTranscripts(tmp_path / "there", NEW)
    placed = there.place(ID, parts, directory=tmp_path, away=tmp_path / "away")
    (file,) = there.files(ID)
    assert file.path.read_text(encoding="utf-8") == lines
    assert file.path.relative_to(tmp_path / "there") == path.relative_to(tmp_path)
    assert (placed.name, placed.moved_away) == (None, None)


def test_a_name_travels_once_and_again_when_it_is_another(tmp_path: Path) -> None:
    write(tmp_path, ID, first_line(ID))
    names = tmp_path / NAMES
    names.write_text(json.dumps({"id": ID, "thread_name": "Digging"}) + "\n", encoding="utf-8")
    transcripts = CodexTranscripts(tmp_path, NEW)
    parts = all_of(transcripts)
    assert [part.data.decode() for part in parts if part.file == NAME] == ["Digging"]
    there = CodexTranscripts(tmp_path / "there", NEW)
    assert there.place(ID, parts, directory=tmp_path, away=tmp_path / "away").name == "Digging"
    names.write_text(json.dumps({"id": ID, "thread_name": "Filling"}) + "\n", encoding="utf-8")
    again = transcripts.tails(ID, {name_of(ID): 10_000})
    assert [part.data.decode() for part in again if part.file == NAME] == ["Filling"]


def test_a_session_that_parted_from_another_takes_along_what_it_needs_of_that(tmp_path: Path) -> None:
    before = first_line(PARENT) + '{"shared": 1}\n'
    write(tmp_path, PARENT, before + '{"later": 1}\n')
    write(tmp_path, ID, first_line(ID, history_base={"thread_id": PARENT, "end_byte_offset": len(before)}))
    parts = all_of(CodexTranscripts(tmp_path, NEW))
    assert [part.file for part in parts] == [name_of(PARENT), name_of(ID)]
    assert parts[0].data.decode() == before
    there = CodexTranscripts(tmp_path / "there", NEW)
    there.place(ID, parts, directory=tmp_path, away=tmp_path / "away")
    assert [file.name for file in there.files(ID)] == [name_of(PARENT), name_of(ID)]
    for missing in ([], parts[:1], parts[1:]):
        elsewhere = CodexTranscripts(tmp_path / f"elsewhere-{len(missing)}", NEW)
        with pytest.raises(CannotMove):
            elsewhere.place(ID, missing, directory=tmp_path, away=tmp_path / "away")
        assert elsewhere.files(ID) == []


def test_a_diverged_file_is_kept_aside(tmp_path: Path) -> None:
    write(tmp_path, ID, first_line(ID) + '{"there": 1}\n')
    parts = all_of(CodexTranscripts(tmp_path, NEW))
    home = tmp_path / "here"
    here = CodexTranscripts(home, NEW)
    path = write(home, ID, first_line(ID))
    assert (
        here.place(ID, parts, directory=tmp_path, away=tmp_path / "away").moved_away is None
    )  # it continues from that
    other = first_line(ID) + '{"here": 1}\n'
    path.write_text(other, encoding="utf-8")
    placed = here.place(ID, parts, directory=tmp_path, away=tmp_path / "away")
    assert placed.moved_away is not None
    (kept,) = placed.moved_away.iterdir()
    assert kept.read_text(encoding="utf-8") == other
    assert '"there"' in path.read_text(encoding="utf-8")


def test_incomplete_and_foreign_files_are_not_placed(tmp_path: Path) -> None:
    there = CodexTranscripts(tmp_path, NEW)
    gap = TranscriptPart(name_of(ID), 100, b"{}\n")
    wrong = TranscriptPart(name_of(ID), 0, first_line(PARENT).encode())
    odd = TranscriptPart("../../.bashrc", 0, b"touch evil\n")
    half = TranscriptPart(name_of(ID), 0, b"no line of Codex")
    for part, why in ((gap, "lacks something"), (wrong, "Not all files"), (odd, "No rollout"), (half, "Not all files")):
        with pytest.raises(CannotMove, match=why):
            there.place(ID, [part], directory=tmp_path, away=tmp_path / "away")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_codex_that_would_damage_a_session_does_not_get_it(tmp_path: Path) -> None:
    write(tmp_path, ID, first_line(ID, "0.163.0"))
    here = CodexTranscripts(tmp_path, NEW)
    assert here.form_of(ID) in here.forms
    old = CodexTranscripts(tmp_path / "old", OLD)
    assert old.forms == ()
    with pytest.raises(CannotMove, match=r"Codex 0\.130\.0 would damage session"):
        old.place(ID, all_of(here), directory=tmp_path, away=tmp_path / "away")
    write(tmp_path / "plain", ID, first_line(ID))
    assert CodexTranscripts(tmp_path / "plain", OLD).form_of(ID) is None


def test_a_session_that_was_taken_back_elsewhere_is_not_mixed_with_what_is_here(tmp_path: Path) -> None:
    part = f"rollout-2026-01-02T03-04-05-{ID}_{uuid.UUID(int=3)}.jsonl"
    write(tmp_path, ID, first_line(ID))
    with pytest.raises(CannotMove, match="taken back to an earlier turn"):
        CodexTranscripts(tmp_path, NEW).targets(ID, [name_of(ID), part], tmp_path)


def test_an_agent_with_a_file_for_each_session_gets_it_where_the_directory_says(tmp_path: Path) -> None:
    place = tmp_path / "projects"

    def machine(home: Path) -> OneFile:
        return OneFile(lambda session_id: home.glob(f"*/{session_id}.jsonl"), lambda directory: home / directory.name)

    (place / "repo").mkdir(parents=True)
    (place / "repo" / f"{ID}.jsonl").write_text("{}\n", encoding="utf-8")
    there = machine(tmp_path / "there")
    parts = all_of(machine(place))
    there.place(ID, parts, directory=tmp_path / "other", away=tmp_path / "away")
    (file,) = there.files(ID)
    assert file.path == tmp_path / "there" / "other" / f"{ID}.jsonl"
    there.place(ID, parts, directory=tmp_path / "third", away=tmp_path / "away")  # and on from there
    assert [file.path.parent.name for file in there.files(ID)] == ["third"]
    with pytest.raises(CannotMove, match="cannot be told where"):
        there.targets(ID, ["other.jsonl"], tmp_path)
    with pytest.raises(CannotMove, match="is no session that can be carried"):
        there.files("../x")
    with pytest.raises(CannotMove, match="Nothing was carried here"):
        there.place(ID, [], directory=tmp_path, away=tmp_path / "away")
