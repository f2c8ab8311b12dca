"""`helmsman run` with a real Codex on a scripted model, piped as in a script."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from helmsman.testing import ScriptedModel, add, always, fail, hang, patch, run, say, think, update, usage
from tests.cli.conftest import Cli

pytestmark = pytest.mark.anyio


async def test_the_final_message_alone_goes_to_stdout(cli: Cli, model: ScriptedModel) -> None:
    model.on("Look", [say("First I look.", phase="commentary"), run("echo found")], say("There it is."))
    done = await cli.run("run", "Look around")
    assert (done.exit_code, done.stdout) == (0, "There it is.\n")
    assert "There it is." not in done.stderr
    assert "• First I look." in done.stderr
    assert "$ echo found\n  found\n  ✓ exit 0" in done.stderr


async def test_the_transcript_has_thoughts_failures_and_diffs(cli: Cli, model: ScriptedModel) -> None:
    (cli.directory / "app.py").write_text("old\n", encoding="utf-8")
    change = patch(update("app.py", "old", "new"), add("more.txt", "hello\n"))
    model.on("Mend", [think("Hm"), run("echo oops; exit 3")], change, say("Mended."))
    done = await cli.run("run", "-s", "workspace-write", "Mend it")
    assert done.exit_code == 0
    assert "\n  Hm\n" in done.stderr
    assert "  oops\n  ✗ exit 3" in done.stderr
    assert "± change app.py  +1 -1\n  @@ -1 +1 @@\n  -old\n  +new\n" in done.stderr
    assert "± add more.txt  +1 -0\n  +hello\n" in done.stderr
    assert (cli.directory / "app.py").read_text(encoding="utf-8") == "new\n"


async def test_usage_and_the_way_to_continue_are_said_at_the_end(cli: Cli, model: ScriptedModel) -> None:
    cost = usage(12345, cached_input_tokens=1000, output_tokens=678, reasoning_output_tokens=9)
    model.on("Look", [say("Done."), cost])
    done = await cli.run("run", "Look")
    assert "12,345 tokens in (1,000 cached), 678 out (9 reasoning)" in done.stderr
    assert "continue with helmsman run --session " in done.stderr


async def test_nothing_is_coloured_where_there_is_no_terminal(cli: Cli, model: ScriptedModel) -> None:
    model.on("Look", run("echo hi; exit 1"), say("Done."))
    done = await cli.run("run", "Look")
    assert "\x1b" not in done.stderr + done.stdout


async def test_json_gives_every_event_and_the_result_last(cli: Cli, model: ScriptedModel) -> None:
    gate, written = model.gate(), list[dict[str, Any]]()
    model.on("Look", run("echo hi"), say("Do", gate, "ne."))
    async with cli.started("run", "--json", "Look") as program:
        assert program.stdout is not None
        assert program.stderr is not None
        lines = BufferedByteReceiveStream(program.stdout)
        with anyio.fail_after(60), suppress(anyio.IncompleteRead):
            while True:
                written.append(json.loads(await lines.receive_until(b"\n", 100_000)))
                if written[-1]["type"] == "item_delta":
                    gate.release()  # a text that was whole before it was followed comes without its pieces
        assert (await program.wait(), b"".join([part async for part in program.stderr])) == (0, b"")
    *events, result = written
    assert {"turn_requested", "turn_started", "item_started", "item_delta", "item_ended", "turn_ended"} <= {
        event["type"] for event in events
    }
    command = next(event["item"] for event in events if event.get("item", {}).get("exitCode") is not None)
    assert (command["type"], command["output"], command["exitCode"]) == ("command_execution", "hi\n", 0)
    assert result["type"] == "result"
    assert (result["status"], result["result"], result["exitCode"]) == ("done", "Done.", 0)
    assert result["usage"]["inputTokens"] > 0
    assert result["sessionId"] == events[0]["sessionId"]


async def test_the_prompt_can_come_from_stdin(cli: Cli, model: ScriptedModel) -> None:
    model.on("-Grüße", say("Read it."))
    done = await cli.run("run", "-", stdin="-Grüße\nfrom a pipe".encode())
    assert (done.exit_code, done.stdout) == (0, "Read it.\n")
    assert model.requests[0].last_user_text == "-Grüße\nfrom a pipe"


async def test_a_prompt_that_begins_with_a_dash_is_no_option(cli: Cli, model: ScriptedModel) -> None:
    model.on("--help me", say("Sure."))
    assert (await cli.run("run", "--", "--help me")).stdout == "Sure.\n"


async def test_options_reach_codex(cli: Cli, model: ScriptedModel, tmp_path: Path) -> None:
    model.on("Look", say("Done."))
    (tmp_path / "elsewhere").mkdir()
    arguments = ["-C", str(tmp_path / "elsewhere"), "-m", "gpt-5.4", "--effort", "high", "--full-auto"]
    done = await cli.run("run", "--json", *arguments, "-c", 'developer_instructions="Be brief"', "Look")
    assert done.exit_code == 0
    body = model.requests[0].body
    assert (body["model"], body["reasoning"]["effort"]) == ("gpt-5.4", "high")
    assert "Be brief" in json.dumps(body["input"])
    assert str(tmp_path / "elsewhere") in json.dumps(body["input"])
    applied = next(event for event in done.json if event["type"] == "settings_applied")
    assert (applied["sandbox"], applied["approvalPolicy"]) == ("workspace-write", "on-request")


async def test_an_image_is_shown_to_the_model(cli: Cli, model: ScriptedModel) -> None:
    model.on("Look", say("A dot."))
    picture = cli.directory / "dot.png"
    picture.write_bytes(
        bytes.fromhex(
            "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
            "1f15c4890000000d49444154789c6360606060000000050001a5f64540"
            "0000000049454e44ae426082"
        )
    )
    assert (await cli.run("run", "--image", "dot.png", "Look")).exit_code == 0
    assert "data:image/png" in json.dumps(model.requests[0].body["input"])


async def test_a_session_is_continued_by_the_end_of_its_id(cli: Cli, model: ScriptedModel) -> None:
    model.on("Begin", say("Begun."))
    model.on("Go on", say("Gone on."))
    session_id = (await cli.run("run", "--json", "Begin")).json[-1]["sessionId"]
    done = await cli.run("run", "--json", "--session", session_id[-8:], "Go on")
    assert (done.json[-1]["sessionId"], done.json[-1]["result"]) == (session_id, "Gone on.")
    assert "Begin" in json.dumps(model.requests[-1].body["input"])


async def test_a_part_of_an_id_that_several_sessions_share_is_refused(cli: Cli, model: ScriptedModel) -> None:
    model.otherwise(say("Begun."))
    ids = [(await cli.run("run", "--json", "Begin")).json[-1]["sessionId"] for _ in range(2)]
    done = await cli.run("run", "--session", ids[0][:4], "Go on")  # ids begin with the time: for years the same
    assert done.exit_code == 2
    assert all(session_id[-8:] in done.stderr for session_id in ids)


async def test_an_unknown_session_is_a_mistake_of_the_caller(cli: Cli) -> None:
    for unknown in ("0199aaaa-0000-7000-8000-000000000000", "deadbeef"):
        done = await cli.run("run", "--session", unknown, "Go on")
        assert done.exit_code == 2
        assert f"no session {unknown}" in done.stderr


async def test_output_that_fits_its_schema_is_given_parsed(cli: Cli, model: ScriptedModel) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    (cli.directory / "schema.json").write_text(json.dumps(schema), encoding="utf-8")
    model.on("Count", say('{"n": 3}'))
    done = await cli.run("run", "--json", "--output-schema", "schema.json", "Count")
    assert done.json[-1]["output"] == {"n": 3}
    model.on("Miscount", always(say('{"n": "three"}')))
    done = await cli.run("run", "--output-schema", "schema.json", "Miscount")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "does not fit the output schema" in done.stderr


async def test_a_question_without_a_person_to_ask_is_denied_with_the_reason(cli: Cli, model: ScriptedModel) -> None:
    model.on("Publish", run("touch /published", escalate="It must leave the sandbox"), say("Then not."))
    done = await cli.run("run", "-s", "workspace-write", "-a", "on-request", "Publish")
    assert (done.exit_code, done.stdout) == (0, "Then not.\n")
    assert "? Codex asks to run a command outside the sandbox\n  Command: touch /published\n" in done.stderr
    assert "Reason given: It must leave the sandbox\n  → deny (there is no terminal to ask on; " in done.stderr
    assert "helmsman run --detach lets questions wait)\n" in done.stderr


async def test_a_turn_that_fails_exits_with_1(cli: Cli, model: ScriptedModel) -> None:
    model.on("Break", fail(400, message="broken for good"))
    done = await cli.run("run", "Break")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "✗ " in done.stderr
    assert "broken for good" in done.stderr


async def test_an_agent_that_says_it_failed_is_believed(cli: Cli, model: ScriptedModel) -> None:
    model.on("Try", say("FAILED: no such file"))
    done = await cli.run("run", "--json", "Try")
    assert done.exit_code == 1
    assert done.json[-1]["error"]["code"] == "step_failed"


async def test_silence_exits_with_4(cli: Cli, model: ScriptedModel) -> None:
    model.on("Wait", hang())
    done = await cli.run("run", "--timeout", "0.5", "--attempts", "1", "--json", "Wait")
    assert done.exit_code == 4
    assert done.json[-1]["error"]["code"] == "step_timed_out"


async def test_a_retry_is_announced(cli: Cli, model: ScriptedModel) -> None:
    model.on("Try", fail(500), say("Second time lucky."))
    done = await cli.run("run", "Try")
    assert (done.exit_code, done.stdout) == (0, "Second time lucky.\n")
    assert "Trying again." in done.stderr
    assert "› Continue where you left off." in done.stderr


async def test_an_interrupt_stops_the_turn_and_exits_with_130(cli: Cli, model: ScriptedModel) -> None:
    model.on("Sleep", run("sleep 300"), say("Never."))
    model.on("Go on", say("Awake."))
    async with cli.started("run", "--json", "Sleep") as process:
        events = await _until(process, '"item_started"', '"command_execution"')
        process.send_signal(signal.SIGINT)
        with anyio.fail_after(30):
            rest = await _read_all(process)
            assert await process.wait() == 130
    result = json.loads(rest.splitlines()[-1])
    assert (result["type"], result["status"], result["exitCode"]) == ("result", "interrupted", 130)
    session_id = json.loads(events.splitlines()[0])["sessionId"]
    done = await cli.run("run", "--session", session_id, "Go on")
    assert done.stdout == "Awake.\n"


async def test_a_second_interrupt_leaves_at_once(cli: Cli, model: ScriptedModel) -> None:
    model.on("Hang", hang())
    async with cli.started("run", "Hang") as process:
        with anyio.fail_after(30):
            await model.wait_for_request()
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGINT)
            assert await process.wait() in (130, -signal.SIGINT)


async def test_a_request_to_end_is_heeded_at_once(cli: Cli, model: ScriptedModel) -> None:
    model.on("Sleep", run("sleep 300"), say("Never."))
    async with cli.started("run", "--json", "Sleep") as process:
        await _until(process, '"item_started"', '"command_execution"')
        process.send_signal(signal.SIGTERM)
        with anyio.fail_after(30):
            rest = await _read_all(process)
            assert await process.wait() == 143
    assert json.loads(rest.splitlines()[-1])["status"] == "interrupted"


async def test_a_reader_that_goes_away_is_no_crash(cli: Cli, model: ScriptedModel) -> None:
    gate = model.gate()
    model.on("Talk", say("Word. ", gate, "More. " * 20_000))
    read, write = os.pipe()
    async with cli.started("run", "--json", "Talk", stdout=write) as process:
        os.close(write)
        with anyio.fail_after(30):
            await gate.reached()
            os.close(read)
            gate.release()
            assert process.stderr is not None
            complaint = b"".join([chunk async for chunk in process.stderr])
            assert await process.wait() == 1
    assert complaint == b""


async def test_without_codex_the_exit_code_is_3_and_the_fix_is_said(bare_cli: Cli) -> None:
    done = await bare_cli.run("run", "Look")
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr.startswith("Error: ")
    assert "no-codex-here does not exist" in done.stderr
    assert "CODEX_CLI_PATH" in done.stderr
    assert (await bare_cli.run("run", "--json", "Look")).json[-1]["error"]["code"] == "codex_not_found"


async def test_a_configuration_that_codex_cannot_read_exits_with_2(cli: Cli, tmp_path: Path) -> None:
    broken = tmp_path / "broken-home"
    broken.mkdir()
    (broken / "config.toml").write_text("this is = = not toml", encoding="utf-8")
    done = await cli.run("run", "--attempts", "1", "Look", CODEX_HOME=str(broken))
    assert done.exit_code == 2
    assert "config.toml" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["Look", "-s", "wide-open"], "'wide-open' is not one of 'read-only'"),
        (["Look", "-a", "maybe"], "'maybe' is not one of"),
        (["Look", "--engine", "warp"], "'warp' is not one of"),
        (["Look", "--attempts", "0"], "0 is not in the range"),
        (["Look", "--timeout", "soon"], "'soon' is not a valid float"),
        (["Look", "-c", "no-equals-sign"], "is not of the form KEY=VALUE"),
        (["Look", "--full-auto", "-s", "read-only"], "--full-auto means workspace-write and contradicts"),
        (["Look", "--output-schema", "nowhere.json"], "cannot be read"),
        (["Look", "--output-schema", "bad.json"], "is not JSON"),
        (["Look", "--output-schema", "list.json"], "must be an object"),
        (["Look", "--image", "nowhere.png"], "no image at 'nowhere.png'"),
        (["Look", "-C", "nowhere"], "'nowhere' does not exist"),
        (["Look", "-C", "bad.json"], "is not a directory"),
        (["Look", "-C", ".", "--session", "x"], "cannot go together"),
        (["Look", "--session", "ab"], "too short"),
        (["Look", "-m", " "], "model cannot be ' '"),
        (["  "], "The prompt is empty"),
        ([], "Missing argument 'PROMPT'"),
        (["Look", "--yes"], "No such option"),
    ],
)
async def test_bad_input_exits_with_2_and_says_what_is_wrong(
    bare_cli: Cli, arguments: list[str], complaint: str
) -> None:
    (bare_cli.directory / "bad.json").write_text("{", encoding="utf-8")
    (bare_cli.directory / "list.json").write_text("[]", encoding="utf-8")
    done = await bare_cli.run("run", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert complaint in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("stdin", "complaint"), [(b"\xff\xfe", "not UTF-8"), (b"a" * 1_100_000, "at most 1048576"), (b"", "empty")]
)
async def test_a_bad_prompt_on_stdin_exits_with_2(bare_cli: Cli, stdin: bytes, complaint: str) -> None:
    done = await bare_cli.run("run", "-", stdin=stdin)
    assert done.exit_code == 2
    assert complaint in done.stderr


async def test_a_setting_that_makes_no_sense_exits_with_2(bare_cli: Cli) -> None:
    done = await bare_cli.run("run", "Look", MAX_SESSIONS="many")
    assert done.exit_code == 2
    assert "MAX_SESSIONS is 'many'" in done.stderr


async def test_logs_come_when_asked_for(bare_cli: Cli) -> None:
    assert "WARNING helmsman" in (await bare_cli.run("run", "Look", LOG_LEVEL="info")).stderr
    assert "WARNING helmsman" not in (await bare_cli.run("run", "Look")).stderr


async def _until(process: anyio.abc.Process, *words: str) -> str:
    """Read its output up to a line with these words."""
    assert process.stdout is not None
    text = ""
    with anyio.fail_after(30):
        while not any(all(word in line for word in words) for line in text.splitlines()):
            text += (await process.stdout.receive()).decode()
    return text


async def _read_all(process: anyio.abc.Process) -> str:
    assert process.stdout is not None
    return b"".join([chunk async for chunk in process.stdout]).decode()
