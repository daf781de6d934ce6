"""Cancels translations before the response and prints how many bytes each call has leaked.

python cancelling_client.py TARGET unary|stream
"""

import asyncio
import ctypes
import gc
import sys

from dragoman.client import AsyncTranslationClient

WARM_UP = 50
CALLS = 200


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


async def allocated_bytes() -> int:
    """Return the number of bytes that malloc has handed out, after all calls have ended."""
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0.01)
    gc.collect()
    mallinfo2 = ctypes.CDLL("libc.so.6").mallinfo2
    mallinfo2.restype = _MallInfo
    info = mallinfo2()
    return int(info.uordblks) + int(info.hblkhd)


async def cancel(client: AsyncTranslationClient, kind: str) -> None:
    """Begin one call and cancel it while it waits for the server."""
    try:
        async with asyncio.timeout(0.005):
            if kind == "unary":
                await client.translate(["One."], source_language="en", target_language="de")
            else:
                async for _ in client.translate_document("One.", source_language="en", target_language="de"):
                    pass
    except TimeoutError:
        pass


async def main(target: str, kind: str) -> None:
    """Print the leaked bytes per call."""
    async with AsyncTranslationClient(target) as client:
        for _ in range(WARM_UP):
            await cancel(client, kind)
        before = await allocated_bytes()
        for _ in range(CALLS):
            await cancel(client, kind)
        print((await allocated_bytes() - before) / CALLS)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
