"""Traces, metrics and logs of all sessions by OpenTelemetry, in the names of its conventions for generative AI.

A turn is a span `invoke_agent`, its commands and tool calls are spans below it, and so are its questions. A turn that a call
with a `traceparent` has started belongs to that trace, and one of a job to the job's (`capabilities.outcomes.jobs`). Nothing
that was said or done is part of them: no prompt, no command, no path; of the hub's log only the words of its own code. The
user may ask for prompts, results and whole log lines (`CONTENT`). Where they go, the standard variables say
(`OTEL_EXPORTER_OTLP_ENDPOINT`, …).
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, field
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Final, Self

from opentelemetry import trace
from opentelemetry.metrics import NoOpMeterProvider, Observation
from opentelemetry.trace import SpanKind, Status, StatusCode

from helmsman._version import __version__
from helmsman.base.redaction import redact
from helmsman.errors import InvalidSetting
from helmsman.model import events

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Span, TracerProvider

    from helmsman.model.events import Event, Item
    from helmsman.sessions.session import Session

log = logging.getLogger(__name__)

_NAME: Final = "helmsman"
_PROVIDERS: Final = {"codex": "openai", "claude": "anthropic", "gemini": "gcp.gemini"}
_TOKENS: Final = "gen_ai.client.token.usage"
_DURATION: Final = "gen_ai.client.operation.duration"
_FLUSH_SECONDS: Final = 2.0
CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Variable of the conventions that asks for prompts and results."""
_SEVERITIES: Final = ((logging.ERROR, "ERROR", 17), (logging.WARNING, "WARN", 13), (logging.INFO, "INFO", 9))


def tool_of(item: Item) -> str | None:
    """Return the name of the tool that an item is a call of, or None."""
    match item:
        case events.CommandExecution():
            return "shell"
        case events.FileChange():
            return "apply_patch"
        case events.McpToolCall():
            return f"{item.server}/{item.tool}"
        case events.DynamicToolCall() | events.CollabToolCall():
            return item.tool
        case events.WebSearch():
            return "web_search"
        case _:
            return None


@dataclass
class _Turn:
    """Spans of a running turn."""

    span: Span
    began: float
    before: events.Usage
    tools: dict[str, Span] = field(default_factory=dict[str, "Span"])
    questions: dict[str, tuple[Span, float]] = field(default_factory=dict[str, "tuple[Span, float]"])


class Telemetry:
    """Listens to the events of all sessions, and makes spans and metrics of them."""

    def __init__(
        self,
        tracers: TracerProvider,
        meters: MeterProvider | None = None,
        *,
        queued: Callable[[], int] = lambda: 0,
        with_content: bool = False,
    ) -> None:
        self._tracer = tracers.get_tracer(_NAME, __version__)
        meter = (meters or NoOpMeterProvider()).get_meter(_NAME, __version__)
        self._turns: dict[str, _Turn] = {}
        self._tokens = meter.create_histogram(_TOKENS, "{token}", "Tokens of a turn")
        self._duration = meter.create_histogram(_DURATION, "s", "Time of a turn")
        self._cost = meter.create_counter("helmsman.cost", "USD", "What agents say that their turns have cost")
        self._waits = meter.create_histogram("helmsman.question.wait", "s", "Time until a question was answered")
        self._running = meter.create_up_down_counter("helmsman.turns.running", "{turn}", "Turns under way")
        meter.create_observable_gauge(
            "helmsman.turns.queued", [lambda _: [Observation(queued())]], "{turn}", "Messages that wait for their turn"
        )
        self._with_content = with_content
        self.close: Callable[[], None] = lambda: None
        """Send the remaining spans, metrics and log lines. Blocks for a bounded time."""

    @classmethod
    def by_environment(cls, queued: Callable[[], int] = lambda: 0) -> Self:
        """Return telemetry that is sent where the standard variables say. MCP calls become spans too, and lines of the
        log are sent. `queued` counts waiting messages.

        Raises:
            InvalidSetting: The extra `otel` is not installed, or a variable is invalid.
        """
        try:
            # The underscores say that the interface for logs may still change. There is no other.
            from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk._logs import LoggerProvider as SdkLoggerProvider
            from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
            from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise InvalidSetting(
                'HELMSMAN_OTEL needs an extra: pip install "codex-helmsman[otel]". Nothing is sent until then.'
            ) from None

        class Spans(BatchSpanProcessor):
            def on_end(self, span: ReadableSpan) -> None:
                super().on_end(_without_words(span))

        resource = Resource.create({"service.name": _NAME, "service.version": __version__})
        with_content = os.environ.get(CONTENT, "").casefold() == "true"
        tracers, lines = SdkTracerProvider(resource=resource), SdkLoggerProvider(resource)
        try:
            tracers.add_span_processor(Spans(OTLPSpanExporter()))
            meters = SdkMeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource)
            lines.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
        except ValueError as error:
            raise InvalidSetting(f"A variable OTEL_… is invalid, so no telemetry is sent: {error}") from None
        trace.set_tracer_provider(tracers)  # the MCP SDK makes spans of calls with it, and reads `traceparent`
        made = cls(tracers, meters, queued=queued, with_content=with_content)
        logging.getLogger(_NAME).addHandler(_LogLines(lines, with_content=with_content))

        def flush() -> None:
            tracers.force_flush()
            meters.force_flush()
            lines.force_flush()

        def close() -> None:
            flushing = Thread(target=flush, daemon=True)  # the SDK ignores time limits if the receiver does not answer
            flushing.start()
            flushing.join(_FLUSH_SECONDS)

        made.close = close
        return made

    def on_event(self, session: Session, event: Event) -> None:
        """Take in an event of a session."""
        try:
            self._take(session, event)
        except Exception:
            log.exception("telemetry leaves out an event of %s", session.id)  # no turn fails because of it

    def _take(self, session: Session, event: Event) -> None:
        turn = self._turns.get(session.id)
        match event:
            case events.TurnRequested() | events.TurnStarted() if turn is None:
                self._begin(session)
                if self._with_content and isinstance(event, events.TurnRequested):
                    self._add_words(session, "gen_ai.input.messages", "user", event.text)
            case events.ItemStarted(item=item) if turn is not None:
                self._begin_tool(turn, item)
            case events.ItemEnded(item=item) if turn is not None:
                # Some items are reported only at their end.
                if item.id not in turn.tools:
                    self._begin_tool(turn, item)
                if (span := turn.tools.pop(item.id, None)) is not None:
                    if item.status == "failed":
                        span.set_attribute("error.type", "tool_error")
                        span.set_status(Status(StatusCode.ERROR))
                    span.end()
            case events.QuestionAsked(question=question) if turn is not None:
                span = self._tracer.start_span("helmsman.question", trace.set_span_in_context(turn.span))
                turn.questions[question.id] = (span, monotonic())
            case events.QuestionClosed(question_id=question_id) if turn is not None and question_id in turn.questions:
                span, asked = turn.questions.pop(question_id)
                span.set_attribute("helmsman.answered_by", event.by)
                span.end()
                self._waits.record(monotonic() - asked, _about(session) | {"helmsman.answered_by": event.by})
            case events.TurnEnded() if turn is not None:
                self._end(session, turn, None if event.outcome == "completed" else str(event.outcome))
            case events.EngineGone() if turn is not None:
                self._end(session, turn, "engine_gone")
            case _:
                pass

    def _begin(self, session: Session) -> None:
        about = _about(session) | {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": session.options.agent,
            "gen_ai.conversation.id": session.id,
        }
        if session.model is not None:
            about["gen_ai.request.model"] = session.model
        span = self._tracer.start_span(f"invoke_agent {session.options.agent}", kind=SpanKind.CLIENT, attributes=about)
        self._turns[session.id] = _Turn(span, monotonic(), session.usage)
        self._running.add(1, _about(session))

    def _begin_tool(self, turn: _Turn, item: Item) -> None:
        if (name := tool_of(item)) is None:
            return
        about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.call.id": item.id}
        context = trace.set_span_in_context(turn.span)
        turn.tools[item.id] = self._tracer.start_span(f"execute_tool {name}", context, attributes=about)

    def _add_words(self, session: Session, name: str, role: str, text: str | None) -> None:
        """Add a prompt or a result to the span of a turn, without secrets."""
        if text:
            message = {"role": role, "parts": [{"type": "text", "content": redact(text)}]}
            self._turns[session.id].span.set_attribute(name, json.dumps([message]))

    def _end(self, session: Session, turn: _Turn, failure: str | None) -> None:
        if self._with_content:
            self._add_words(session, "gen_ai.output.messages", "assistant", session.result)
        # Codex closes no items when a turn is interrupted.
        for span in (*turn.tools.values(), *(span for span, _ in turn.questions.values())):
            span.end()
        about, now, before = _about(session), session.usage, turn.before
        for kind, count in (
            ("input", now.input_tokens - before.input_tokens),
            ("output", now.output_tokens - before.output_tokens),
        ):
            if count > 0:
                turn.span.set_attribute(f"gen_ai.usage.{kind}_tokens", count)
                self._tokens.record(count, about | {"gen_ai.token.type": kind})
        if now.cost_usd is not None and (cost := now.cost_usd - (before.cost_usd or 0)) > 0:
            self._cost.add(cost, about)
        if failure is not None:
            turn.span.set_attribute("error.type", failure)
            turn.span.set_status(Status(StatusCode.ERROR))
        turn.span.end()
        self._duration.record(monotonic() - turn.began, about | ({} if failure is None else {"error.type": failure}))
        self._running.add(-1, about)
        del self._turns[session.id]


class _LogLines(logging.Handler):
    """Sends lines of the log: without content, the words of the code alone, and not the values in them."""

    def __init__(self, provider: LoggerProvider, *, with_content: bool) -> None:
        super().__init__(logging.INFO)
        self._logger = provider.get_logger(_NAME, __version__)
        self._with_content = with_content

    def emit(self, record: logging.LogRecord) -> None:
        from opentelemetry._logs import LogRecord, SeverityNumber  # of the extra, as is the provider

        _, name, number = next((one for one in _SEVERITIES if record.levelno >= one[0]), _SEVERITIES[-1])
        about = {"code.namespace": record.name}
        if record.exc_info and record.exc_info[0] is not None:
            about["exception.type"] = record.exc_info[0].__qualname__
        self._logger.emit(
            LogRecord(
                timestamp=int(record.created * 1e9),
                severity_text=name,
                severity_number=SeverityNumber(number),
                # Without content only the format is sent: the values in it may be prompts and paths.
                body=redact(record.getMessage()) if self._with_content else str(record.msg),
                attributes=about,
            )
        )


def _without_words(span: ReadableSpan) -> ReadableSpan:
    """Return a span without the texts of errors: the MCP SDK adds them, and they may quote a client's input."""
    from opentelemetry.sdk.trace import ReadableSpan  # of the extra

    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _about(session: Session) -> dict[str, str]:
    agent = session.options.agent
    return {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": _PROVIDERS.get(agent, agent)}
