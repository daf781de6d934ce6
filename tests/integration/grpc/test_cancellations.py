"""Cancelled calls are removed from queue, batch and counts at any moment."""

import asyncio
from pathlib import Path

from tests.integration.running_server import RunningServer, running_server


async def test_cancelled_waiting_call_frees_its_queue_place_at_once(tiny_model: Path) -> None:
    async with running_server(tiny_model, scheduling__max_batch_segments=1) as server:
        server.model.halt()
        decoding = asyncio.ensure_future(server.translate("A man."))
        await server.model.halted_step()
        waiting = server.translate("A man. " * 5)
        await server.until_sample(5, "dragoman_queue_segments")

        waiting.cancel()

        await server.until_sample(0, "dragoman_queue_segments")
        assert server.sample("dragoman_queue_tokens") == 0
        server.model.resume()
        assert (await decoding).translations


async def test_cancelled_decoding_call_leaves_the_batch_after_the_step(server: RunningServer) -> None:
    server.model.halt()
    call = server.translate("A man. " * 5)
    await server.model.halted_step()

    call.cancel()
    await server.until_sample(5, "dragoman_segments_total", outcome="cancelled")
    server.model.resume()

    await server.until_sample(0, "dragoman_requests_in_flight", method="Translate")
    for gauge in ("dragoman_queue_segments", "dragoman_queue_tokens"):
        await server.until_sample(0, gauge)
    assert (await server.translate("A man.")).translations  # takes more steps than the one in which the call left
    num_before, steps_before = (
        server.sample("dragoman_batch_segments_sum"),
        server.sample("dragoman_batch_segments_count"),
    )
    assert (await server.translate("A man.")).translations  # alone in the batch
    num_steps = server.sample("dragoman_batch_segments_count") - steps_before
    assert num_steps > 0
    assert server.sample("dragoman_batch_segments_sum") - num_before == num_steps
