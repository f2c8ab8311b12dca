"""Small pieces of structured concurrency that anyio leaves to its users."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import anyio

from helmsman.errors import HelmsmanError, NeedsAsyncio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from anyio.abc import TaskGroup

log = logging.getLogger(__name__)

ValueT = TypeVar("ValueT")


def require_asyncio() -> None:
    """Require an event loop of asyncio: processes, WebSockets and the MCP SDK need one.

    Raises:
        NeedsAsyncio: The event loop is another one.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise NeedsAsyncio(
            "Helmsman needs asyncio. Start your program with `asyncio.run(main())` or `anyio.run(main)`, not under trio; in "
            "a script without an event loop use `with helmsman.SyncHelmsman() as helm`."
        ) from None


@asynccontextmanager
async def background_tasks() -> AsyncIterator[TaskGroup]:
    """Yield a task group for work that serves the block: cancelled when the block ends.

    Unlike a bare task group it lets the block's own exception out as it is, not wrapped in an exception group, so that
    a caller can say `except StepFailed`. A failing background task still cancels the block and comes out as a group.
    """
    tasks = anyio.create_task_group()
    # Entered by hand, since `async with` would wrap the block's exception into a group.
    await tasks.__aenter__()
    try:
        yield tasks
    finally:
        tasks.cancel_scope.cancel()
        await tasks.__aexit__(None, None, None)


def logging_failures(tasks: TaskGroup) -> TaskGroup:
    """Return a task group that logs the failure of a task when it happens, not only when the group ends."""
    return cast("TaskGroup", _LoggingFailures(tasks))


async def log_failure(failed: str, function: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run a function for the background: its failure is logged, beside what `failed`, and ends nothing else."""
    try:
        await function()
    except HelmsmanError as error:
        log.warning("%s: %s", failed, error)
    except Exception:
        log.exception("%s", failed)


class _LoggingFailures:
    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self.cancel_scope = tasks.cancel_scope

    def start_soon(self, function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        self._tasks.start_soon(self._run, function, arguments)

    async def start(self, function: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
        # Not logged: `start` raises in the caller until the task reports that it has started.
        return await self._tasks.start(function, *arguments)  # the caller receives the exception

    async def _run(self, function: Callable[..., Coroutine[Any, Any, Any]], arguments: tuple[Any, ...]) -> None:
        try:
            await function(*arguments)
        except Exception:
            log.exception("something in the background has failed")
            raise


async def sleep_until(
    event: anyio.Event | asyncio.Event, seconds: float, sleep: Callable[[float], Awaitable[None]] = anyio.sleep
) -> None:
    """Sleep for this many seconds, or until the event is set."""
    async with anyio.create_task_group() as waiting:

        async def until_set() -> None:
            await event.wait()
            waiting.cancel_scope.cancel()

        waiting.start_soon(until_set)
        await sleep(seconds)
        waiting.cancel_scope.cancel()


class OnceEach(Generic[ValueT]):
    """Values that are made once per key, also for concurrent callers.

    If making one fails, the next caller tries again.
    """

    def __init__(self) -> None:
        self._made: dict[str, ValueT] = {}
        self._making: dict[str, anyio.Event] = {}

    async def get(self, key: str, make: Callable[[], Awaitable[ValueT]]) -> ValueT:
        while key not in self._made:
            if key in self._making:
                # If making it failed, one of the waiting callers tries next.
                await self._making[key].wait()
                continue
            done = self._making[key] = anyio.Event()
            try:
                self._made[key] = await make()
            finally:
                del self._making[key]
                done.set()
        return self._made[key]

    def forget(self, key: str) -> None:
        self._made.pop(key, None)


async def run_to_completion(
    tasks: TaskGroup, make: Callable[[], Awaitable[ValueT]], abandon: Callable[[ValueT], Awaitable[None]]
) -> ValueT:
    """Run `make` to its end, even if the caller is cancelled. Pass a result without a caller to `abandon`."""
    made: list[ValueT] = []
    errors: list[Exception] = []
    done = anyio.Event()

    async def run() -> None:
        try:
            # Runs in the group, so a cancelled caller does not cancel it.
            made.append(await make())
        except Exception as error:  # noqa: BLE001 - raised where the caller waits
            errors.append(error)
        finally:
            done.set()

    async def clean_up() -> None:
        await done.wait()
        for value in made:
            await abandon(value)

    tasks.start_soon(run)
    try:
        await done.wait()
    except BaseException:
        # The result would leak: no other task knows of it.
        tasks.start_soon(clean_up)
        raise
    if errors:
        raise errors[0]
    return made[0]
