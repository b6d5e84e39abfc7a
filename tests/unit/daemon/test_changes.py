"""Waiting for changes without polling."""

from __future__ import annotations

import asyncio

from ffdl_batch.daemon.request_context import Changes


def test_changes_wait_returns_after_bump_in_another_thread_or_before_wait() -> None:
    async def scenario() -> int:
        changes = Changes()
        changes.bump()  # without an event loop
        changes.attach(asyncio.get_running_loop())
        seen = changes.version
        waiter = asyncio.create_task(changes.wait(seen, 3600.0))
        await asyncio.to_thread(changes.bump)
        async with asyncio.timeout(120):
            await waiter
            await changes.wait(seen, 3600.0)
        return changes.version - seen

    assert asyncio.run(scenario()) == 1


def test_changes_close_releases_current_and_later_waiters() -> None:
    async def scenario() -> None:
        changes = Changes()
        changes.attach(asyncio.get_running_loop())
        waiter = asyncio.create_task(changes.wait(changes.version, 3600.0))
        await asyncio.sleep(0)
        changes.close()
        async with asyncio.timeout(120):
            await waiter
            await changes.wait(changes.version, 3600.0)

    asyncio.run(scenario())
