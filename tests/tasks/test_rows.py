"""What is done to everything before it is stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.base.redaction import REDACTED
from helmsman.tasks.model import TaskDraft
from helmsman.tasks.registry import Registry
from helmsman.tasks.rows import INSTRUCTION_LIMIT, clean, clean_key

SECRET = "sk-proj-abcdefghij0123456789"


def test_no_secret_gets_into_the_file(registry: Registry) -> None:
    task, _ = registry.add(
        TaskDraft(
            instruction=f"Deploy with OPENAI_API_KEY={SECRET}",
            stored_options={"config": {"token": SECRET}, "text": f"use {SECRET}"},
            idempotency_key=SECRET,
        )
    )
    registry.update(
        task.id,
        status="failed",
        model=SECRET,
        result=f"I used {SECRET}",
        note=f"because of {SECRET}",
        error={"code": "other", "message": f"{SECRET} is wrong", "retryable": False},
        progress={"text": SECRET},
    )
    registry.update(task.id, granted={"more": [SECRET]})
    found = registry.get(task.id)
    assert found is not None
    assert found.instruction == f"Deploy with OPENAI_API_KEY={REDACTED}"
    assert found.result == f"I used {REDACTED}"
    assert SECRET not in found.alias
    registry.close()
    for file in registry.path.parent.iterdir():
        assert SECRET.encode() not in file.read_bytes()


def test_a_key_is_not_in_the_file_and_still_tells_keys_apart(registry: Registry) -> None:
    """Nobody can tell by its looks whether a key is a secret: this one has no shape at all."""
    plain = "correct horse battery"
    first, _ = registry.add(TaskDraft(instruction="x", idempotency_key=plain))
    assert registry.add(TaskDraft(instruction="x", idempotency_key=plain)) == (first, False)
    assert first.idempotency_key is not None
    by_digest = TaskDraft(instruction="x", idempotency_key=first.idempotency_key)
    assert registry.add(by_digest)[1], "a digest that somebody read is no key"
    registry.close()
    for file in registry.path.parent.iterdir():
        assert plain.encode() not in file.read_bytes()


def test_a_secret_as_a_key_still_tells_keys_apart(registry: Registry) -> None:
    assert clean_key(SECRET) != clean_key(SECRET + "0")
    first, _ = registry.add(TaskDraft(instruction="x", idempotency_key=SECRET))
    assert registry.add(TaskDraft(instruction="x", idempotency_key=SECRET)) == (first, False)
    assert registry.add(TaskDraft(instruction="x", idempotency_key=SECRET + "0"))[1]


def test_a_whole_book_is_cut_and_never_in_the_middle_of_a_secret() -> None:
    for before in range(INSTRUCTION_LIMIT - 40, INSTRUCTION_LIMIT + 5, 3):
        text = "a" * (before - 1) + " " + SECRET + " " + "b" * 100_000
        stored = clean({"instruction": text})["instruction"]
        assert len(stored) <= INSTRUCTION_LIMIT + 1
        assert stored.endswith("…")
        assert "sk-proj" not in stored
    many = f"{SECRET} " * 5000
    assert "sk-" not in clean({"instruction": many})["instruction"]


class Odd:
    def __str__(self) -> str:
        return "odd"


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"cwd": Path("/src"), "odd": Odd()}, {"cwd": "/src", "odd": "odd"}),
        ({"pair": (1, 2), 3: "three", (4, 5): "dropped"}, {"pair": [1, 2], "3": "three"}),
        ({"half": "\ud800"}, {"half": "\ud800"}),
    ],
)
def test_options_of_any_kind_can_be_stored(registry: Registry, given: dict[Any, Any], stored: dict[str, Any]) -> None:
    task, _ = registry.add(TaskDraft(instruction="x", stored_options=given))
    found = registry.get(task.id)
    assert found == task
    assert found is not None
    assert found.stored_options == stored


@given(st.text())
def test_any_text_can_be_stored(text: str) -> None:
    cleaned = clean({"instruction": text, "result": text, "note": text, "directory": text, "model": text})
    for value in (*cleaned.values(), clean_key(text)):
        value.encode("utf-8")
    assert clean(cleaned) == cleaned


def test_half_of_a_surrogate_pair_does_no_harm(registry: Registry) -> None:
    task, _ = registry.add(TaskDraft(instruction="a\ud800b", directory="/src/\udcff", idempotency_key="k\udcff"))
    assert registry.get(task.id) == task
    assert task.instruction == "a?b"


def test_fields_of_a_later_version_survive_a_change(registry: Registry) -> None:
    task, _ = registry.add(TaskDraft(instruction="x"))
    later = """UPDATE tasks SET body = '{"instruction": "x", "mood": "good"}' WHERE id = ?"""
    registry.database.write(lambda connection: connection.execute(later, (task.id,)))
    registry.update(task.id, status="working", note="so far")
    (body,) = registry.database.read(lambda connection: connection.execute("SELECT body FROM tasks").fetchone())
    assert json.loads(body) == {"instruction": "x", "mood": "good", "note": "so far"}


@pytest.mark.parametrize("body", ["nonsense", '{"note": 3}', None])
def test_content_that_makes_no_sense_counts_as_absent(registry: Registry, body: str | None) -> None:
    task, _ = registry.add(TaskDraft(instruction="x", session_id="s-1"))
    sql = "UPDATE tasks SET body = ?, expiring = ?, status = 'odd' WHERE id = ?"
    registry.database.write(lambda connection: connection.execute(sql, (body, "[]", task.id)))
    found = registry.get(task.id)
    assert found is not None
    assert (found.status, found.session_id, found.instruction) == ("unknown", "s-1", "")
