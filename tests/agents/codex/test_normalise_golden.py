"""Tests that every recorded transcript of every tested Codex gives the recorded events."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "record_goldens.py"


def _load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record_goldens", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


goldens = _load_script()
RECORDINGS: list[Path] = goldens.recordings()


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_recording_gives_the_expected_events(recording: Path) -> None:
    expected = json.loads(goldens.events_path(recording).read_text(encoding="utf-8"))
    assert [goldens.described(event) for event in goldens.normalised(recording)] == expected


def test_every_supported_version_is_recorded_in_both_dialects() -> None:
    versions = {"0.93.0", "0.115.0", "0.130.0", "0.145.0", "0.155.0", "0.163.0", "0.166.0"}
    assert versions <= {recording.parent.name for recording in RECORDINGS}
    for version in versions:
        names = {recording.stem for recording in RECORDINGS if recording.parent.name == version}
        for story in goldens.STORIES:
            if story not in ("plan", "sub-agent"):  # not every version offers these tools
                assert {f"{dialect}-{story}" for dialect in goldens.STORIES[story].dialects} <= names


def test_nothing_in_a_recording_is_unknown() -> None:
    unknown = [
        f"{recording.parent.name}/{recording.name}: {event}"
        for recording in RECORDINGS
        for event in goldens.normalised(recording)
        if type(event).__name__ == "Unknown" or "UnknownItem" in repr(event)
    ]
    assert unknown == []
