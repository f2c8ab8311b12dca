"""Handle termination signals, and force the exit if shutdown hangs."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final

import anyio

from helmsman.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from anyio.abc import TaskStatus


# Windows has no SIGQUIT.
_MEANING: Final = {signal.SIGINT: ExitCode.INTERRUPTED, getattr(signal, "SIGQUIT", None): ExitCode.OK}
_SHUTDOWN_SECONDS: Final = 2.0


async def handle_signals(on_signal: Callable[[ExitCode], None], *, task_status: TaskStatus[None]) -> None:
    r"""Call `on_signal` with the exit code for each signal received. Ctrl-\ gives OK, because the user only leaves."""
    if sys.platform == "win32":  # no signals on Windows: Ctrl-C cancels everything, as in any Python program
        task_status.started()
        return
    try:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT) as signals:
            task_status.started()
            async for number in signals:
                on_signal(_MEANING.get(number, ExitCode.TERMINATED))
    finally:
        # From here on, Ctrl-C interrupts the shutdown.
        signal.signal(signal.SIGINT, _interrupt_shutdown)


def _interrupt_shutdown(_number: int, _frame: FrameType | None) -> None:
    """Interrupt a shutdown. A task that a `KeyboardInterrupt` has torn may never end, so the exit is forced."""
    exit_after(_SHUTDOWN_SECONDS, ExitCode.INTERRUPTED)
    raise KeyboardInterrupt


def exit_after(seconds: float, code: int) -> None:
    """Force the process to exit after this time."""
    # A thread, because the event loop may hang; `_exit`, because other threads may.
    timer = threading.Timer(seconds, os._exit, (code,))
    # It must not keep a process that ends in time.
    timer.daemon = True
    timer.start()
