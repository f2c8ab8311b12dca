"""Tests of turn outcomes: recorded files of real versions (`rollout_ends`), a real Codex, and odd files.

Each recorded file has four turns: one that completes, one that fails, one that is interrupted, one that is still open.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helmsman.agents.codex.storage import lines_from_end, read_turn, turns_of
from helmsman.model.events import Usage
from helmsman.testing import CodexHome, ScriptedModel, fail, run, say, usage

RECORDED = sorted((Path(__file__).parent / "rollout_ends").glob("*.jsonl"))
each_version = pytest.mark.parametrize("path", RECORDED, ids=[path.stem for path in RECORDED])

TIME = "2026-11-15T12:00:{second:06.3f}Z"


def write(path: Path, *entries: tuple[str, dict[str, Any]]) -> Path:
    """Return a file of these lines, a second apart."""
    lines = [
        json.dumps({"timestamp": TIME.format(second=second), "type": kind, "payload": payload})
        for second, (kind, payload) in enumerate(entries)
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def event(kind: str, **payload: Any) -> tuple[str, dict[str, Any]]:
    return "event_msg", {"type": kind, **payload}


def spent(total: int) -> tuple[str, dict[str, Any]]:
    return event("token_count", info={"total_token_usage": {"input_tokens": total, "output_tokens": 1}})


# --- as real versions wrote them -------------------------------------------------------------------------------------


def test_all_formats_are_recorded() -> None:
    assert {path.stem for path in RECORDED} == {"0.93.0", "0.115.0", "0.130.0", "0.145.0", "0.155.0", "0.166.0"}


@each_version
def test_every_version_reports_the_outcome_of_its_turns(path: Path) -> None:
    turns = list(turns_of(path))[::-1]
    assert [turn.outcome for turn in turns] == ["completed", "failed", "interrupted", "open"]
    assert [turn.message for turn in turns] == ["All good.", None, None, None]
    assert [turn.usage for turn in turns] == [
        Usage(250, 50, 17, 4),
        Usage(50, 0, 5, 0),
        Usage(11, 0, 1, 0),
        Usage(21, 0, 2, 0),
    ]
    assert {turn.model for turn in turns} <= {"gpt-5.2-codex", "gpt-5.4", "gpt-5.5"}
    began = [turn.began_at for turn in turns if turn.began_at is not None]
    assert len(began) == 4
    assert began == sorted(began)
    for turn in turns:
        assert turn.last_written_at is not None
        assert turn.began_at is not None
        assert turn.began_at <= turn.last_written_at
        assert turn.ended_at in (None, turn.last_written_at)
    assert turns[-1].ended_at is None


@each_version
def test_a_failure_has_its_reason_where_the_version_records_one(path: Path) -> None:
    error = next(turn.error for turn in turns_of(path) if turn.outcome == "failed")
    assert error is not None
    if tuple(map(int, path.stem.split("."))) >= (0, 145, 0):
        assert "bad things happened" in error.message
    else:
        assert "did not record why" in error.message


@each_version
def test_a_turn_is_found_by_its_id_and_the_last_without(path: Path) -> None:
    turns = list(turns_of(path))
    assert read_turn(path, None) == turns[0]
    for turn in turns:
        if turn.turn_id is not None:
            assert read_turn(path, turn.turn_id) == turn
    unknown = read_turn(path, "no-such-turn")
    assert unknown == (turns[0] if path.stem == "0.93.0" else None)


@each_version
def test_the_first_turn_since_a_time_is_found(path: Path) -> None:
    last, third, second, first = turns_of(path)
    for turn in (first, second, third, last):
        assert read_turn(path, None, since=turn.began_at) == turn
    assert read_turn(path, None, since=datetime(2000, 1, 1, tzinfo=UTC)) == first
    assert last.began_at is not None
    assert read_turn(path, None, since=last.began_at + timedelta(seconds=1)) is None


@each_version
def test_a_file_cut_at_any_line_or_in_the_middle_of_one_is_read_as_far_as_it_goes(path: Path, tmp_path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    cut = tmp_path / path.name
    whole = [turn.outcome for turn in turns_of(path)][::-1]
    for number in range(len(lines)):
        cut.write_bytes(b"".join(lines[:number]) + lines[number][: len(lines[number]) // 2])
        outcomes = [turn.outcome for turn in turns_of(cut)][::-1]
        settled, last = outcomes[:-1], outcomes[-1:]
        assert settled == whole[: len(settled)]
        assert last in ([], ["open"], whole[len(settled) : len(settled) + 1])


# --- a real Codex ----------------------------------------------------------------------------------------------------


async def run_exec(codex: Path, home: CodexHome, folder: Path, prompt: str) -> None:
    command = [str(codex), "exec", "--json", "--skip-git-repo-check", "-s", "read-only", prompt]
    with anyio.fail_after(60):
        await anyio.run_process(command, cwd=folder, env=home.env, check=False, stdin=subprocess.DEVNULL)


def rollout(home: CodexHome) -> Path:
    (path,) = (home.path / "sessions").rglob("rollout-*.jsonl")
    return path


@pytest.mark.matrix
@pytest.mark.anyio
async def test_a_turn_that_a_real_codex_completed_is_completed(
    codex_binary: Path, codex_home: CodexHome, model: ScriptedModel, tmp_path: Path
) -> None:
    model.otherwise([run("true"), usage(100, 20, 10, 3)], [say("All good."), usage(150, 30, 7, 1)])
    await run_exec(codex_binary, codex_home, tmp_path, "work")
    turn = read_turn(rollout(codex_home), None)
    assert turn is not None
    assert (turn.outcome, turn.message, turn.usage) == ("completed", "All good.", Usage(250, 50, 17, 4))
    assert turn.model == codex_home.config["model"]


@pytest.mark.matrix
@pytest.mark.anyio
async def test_a_turn_that_a_real_codex_failed_at_is_failed(
    codex_binary: Path, codex_version: tuple[int, int, int], codex_home: CodexHome, model: ScriptedModel, tmp_path: Path
) -> None:
    model.otherwise([run("true"), usage(50, 0, 5, 0)], fail(400, message="bad things happened"))
    await run_exec(codex_binary, codex_home, tmp_path, "work")
    turn = read_turn(rollout(codex_home), None)
    assert turn is not None
    assert turn.outcome == ("failed" if codex_version >= (0, 115, 0) else "open")  # 0.93 records no end at all
    assert turn.usage == Usage(50, 0, 5, 0)


@pytest.mark.matrix
@pytest.mark.anyio
async def test_a_turn_in_which_a_real_codex_was_killed_is_open(
    codex_binary: Path, codex_home: CodexHome, model: ScriptedModel, tmp_path: Path
) -> None:
    gate = model.gate()
    model.otherwise([run("true"), usage(50, 0, 5, 0)], [say("Al", gate, "l good.")])
    command = [str(codex_binary), "exec", "--json", "--skip-git-repo-check", "-s", "read-only", "work"]
    async with await anyio.open_process(
        command, cwd=tmp_path, env=codex_home.env, stdin=subprocess.DEVNULL, start_new_session=True
    ) as process:
        with anyio.fail_after(60):
            await gate.reached()
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    gate.release()
    turn = read_turn(rollout(codex_home), None)
    assert turn is not None
    assert (turn.outcome, turn.message) == ("open", None)


# --- odd files -------------------------------------------------------------------------------------------------------


def test_a_file_that_is_missing_empty_or_something_else_tells_of_no_turn(tmp_path: Path) -> None:
    assert read_turn(tmp_path / "missing.jsonl", None) is None
    assert read_turn(tmp_path, None) is None
    for content in (b"", b"\n\n", b"nonsense", b"\xff\xfe\n[]\n{}\nnull\n", b'{"type":"event_msg"}\n'):
        path = tmp_path / "odd.jsonl"
        path.write_bytes(content)
        assert read_turn(path, None) is None


def test_a_turn_left_open_by_a_crash_is_over_once_another_has_begun(tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.jsonl",
        event("task_started", turn_id="a"),
        event("task_started", turn_id="b"),
        event("task_complete", turn_id="b", last_agent_message="Done."),
    )
    outcomes = {turn.turn_id: turn.outcome for turn in turns_of(path)}
    assert outcomes == {"b": "completed", "a": "interrupted"}


def test_an_end_of_another_turn_is_not_taken_for_this_one(tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.jsonl",
        event("task_started", turn_id="a"),
        event("task_complete", turn_id="other", last_agent_message="Done."),
    )
    turn = read_turn(path, "a")
    assert turn is not None
    assert turn.outcome == "open"


def test_a_completion_without_a_message_is_one_where_failures_are_recorded(tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.jsonl",
        event("task_started", turn_id="a"),
        event("task_complete", turn_id="a", last_agent_message=None, started_at=1),
    )
    turn = read_turn(path, "a")
    assert turn is not None
    assert (turn.outcome, turn.message) == ("completed", None)


def test_an_http_status_is_part_of_a_failure(tmp_path: Path) -> None:
    error = {"message": "Down.", "codex_error_info": {"response_stream_disconnected": {"http_status_code": 503}}}
    path = write(
        tmp_path / "r.jsonl", event("task_started", turn_id="a"), event("task_complete", turn_id="a", error=error)
    )
    turn = read_turn(path, "a")
    assert turn is not None
    assert turn.error is not None
    assert (turn.error.code, turn.error.http_status) == ("response_stream_disconnected", 503)
    assert turn.error.retryable


def test_tokens_are_those_of_the_turn_alone_also_when_counting_began_anew(tmp_path: Path) -> None:
    begin, end = event("task_started", turn_id="t"), event("task_complete", turn_id="t", last_agent_message="x")
    path = write(
        tmp_path / "r.jsonl",
        begin,
        spent(100),
        end,
        begin,
        end,
        begin,
        spent(100),
        spent(130),
        end,
        begin,
        spent(7),
        end,
    )
    tokens = [None if turn.usage is None else turn.usage.input_tokens for turn in turns_of(path)]
    assert tokens[::-1] == [100, None, 30, 7]


def test_turns_that_were_taken_back_are_still_reported_but_are_not_the_last(tmp_path: Path) -> None:
    def turn(name: str) -> list[tuple[str, dict[str, Any]]]:
        return [event("task_started", turn_id=name), event("task_complete", turn_id=name, last_agent_message=name)]

    back = [event("thread_rolled_back", num_turns=number) for number in range(3)]
    path = write(tmp_path / "r.jsonl", *turn("a"), *turn("b"), *turn("c"), back[1], *turn("d"), back[2])
    assert [(turn.turn_id, turn.forgotten) for turn in turns_of(path)] == [
        ("d", True),
        ("c", True),
        ("b", True),
        ("a", False),
    ]
    last, third = read_turn(path, None), read_turn(path, "c")
    assert last is not None
    assert third is not None
    assert (last.message, third.message) == ("a", "c")


def test_a_file_that_continues_from_another_counts_only_what_was_spent_in_it(tmp_path: Path) -> None:
    total, last = {"input_tokens": 1100, "output_tokens": 11}, {"input_tokens": 100, "output_tokens": 1}
    path = write(
        tmp_path / "r.jsonl",
        event("task_started", turn_id="a"),
        event("token_count", info={"total_token_usage": total, "last_token_usage": last}),
        event("task_complete", turn_id="a", last_agent_message="x"),
    )
    turn = read_turn(path, "a")
    assert turn is not None
    assert turn.usage == Usage(100, 0, 1, 0)


def test_a_compressed_file_is_unpacked(tmp_path: Path) -> None:
    zstd = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    plain = RECORDED[-1]
    packed = tmp_path / f"{plain.name}.zst"
    packed.write_bytes(zstd.compress(plain.read_bytes()))
    assert list(turns_of(packed)) == list(turns_of(plain))
    packed.write_bytes(b"not zstd at all")
    assert list(turns_of(packed)) == []


class Counted(io.BytesIO):
    """File that counts the bytes read."""

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


def test_of_a_big_file_only_the_end_is_read() -> None:
    file = Counted(b"".join(b"%d " % number + b"x" * 1000 + b"\n" for number in range(20_000)) + b"last\n")
    lines = lines_from_end(file)
    assert (next(lines), next(lines)) == (b"", b"last")
    assert next(lines).startswith(b"19999 ")
    assert file.taken < 100_000


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=20), st.integers(1, 40))
def test_lines_are_the_same_backwards_whatever_the_blocks(lines: list[bytes], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("helmsman.agents.codex.storage._BLOCK", block)
        assert list(lines_from_end(io.BytesIO(b"\n".join(lines)))) == (lines[::-1] or [b""])


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_no_value_in_a_line_raises(tmp_path_factory: pytest.TempPathFactory, odd: Any) -> None:
    path = write(
        tmp_path_factory.getbasetemp() / "odd.jsonl",
        event("task_started", turn_id=odd),
        ("turn_context", {"model": odd}),
        event("token_count", info=odd),
        event("token_count", info={"total_token_usage": {"input_tokens": odd}}),
        event("agent_message", message=odd),
        ("response_item", {"type": odd}),
        event("task_complete", turn_id=odd, last_agent_message=odd, error=odd),
        event("turn_aborted", turn_id=odd),
        ("event_msg", odd),
    )
    list(turns_of(path))
