"""Translation of blocks by a pool of Ray actors, each with its own engine or connection."""

import os
import pickle
import secrets
import signal
import socket
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from dragoman.client.errors import DragomanError as CallError
from dragoman_service.dataset_translation.files import Block, read_block
from dragoman_service.dataset_translation.output import BlockResult, write_part
from dragoman_service.dataset_translation.settings import Columns, DatasetError
from dragoman_service.dataset_translation.translators import EngineTranslator, ServerTranslator
from dragoman_service.errors import DragomanError, EngineError

ADDRESS_VARIABLE: Final = "RAY_ADDRESS"
_CONNECT_TIMEOUT_S: Final = 10.0
_OBJECT_STORE_BYTES: Final = 128 << 20  # only descriptions of blocks and results pass through it

_ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DATA_LOG_LEVEL": "CRITICAL",
}
_OWN_INSTANCE: Final = {
    "AUTOSCALER_METRIC_PORT": "0",  # any free one, so that runs on one machine do not compete for 44217
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on all systems: Ray listens on loopback only
}


class BlockTranslator:
    """Reads, translates and writes blocks."""

    def __init__(self, chosen: EngineTranslator | ServerTranslator, columns: Columns, directory: Path) -> None:
        self._translator = chosen.open()
        self._columns, self._directory = columns, directory

    def __call__(self, row: dict[str, bytes]) -> dict[str, bytes]:
        """Process one pickled block; return the pickled result."""
        block: Block = pickle.loads(row["block"])  # noqa: S301 - from the driver
        return {"result": pickle.dumps(self.process(block))}

    def process(self, block: Block) -> BlockResult:
        """Write the part of a block; an error that ends the run is part of the result."""
        try:
            rows = read_block(block, self._columns)
            translated = self._translator.translate(rows.texts) if rows.texts else []
            write_part(self._directory, block, self._columns, rows, translated)
        except (DragomanError, CallError, OSError) as error:
            return BlockResult(index=block.index, error=f"{block.name}, row {block.first_row} and following: {error}")
        failed = [(row_id, each.reason) for row_id, each in zip(rows.ids, translated, strict=True) if each.reason]
        return BlockResult(
            index=block.index, num_translated=len(translated) - len(failed), rejects=(*rows.rejects, *failed)
        )


def translate_blocks(
    blocks: Sequence[Block],
    chosen: EngineTranslator | ServerTranslator,
    columns: Columns,
    directory: Path,
    *,
    num_workers: int,
) -> Generator[BlockResult, None, None]:
    """Yield the result of each block as it ends, in any order. Closing the generator stops Ray.

    A block whose process ends is repeated by another process.
    """
    is_own = not os.environ.get(ADDRESS_VARIABLE)
    if not is_own:
        _check_reachable(os.environ[ADDRESS_VARIABLE])
    token = {"RAY_AUTH_TOKEN": secrets.token_hex(32)} if is_own and not _has_token() else {}
    for name, value in {**_ENVIRONMENT, **(_OWN_INSTANCE if is_own else {}), **token}.items():
        os.environ.setdefault(name, value)  # read when Ray is imported
    import ray  # noqa: PLC0415 - the import takes seconds and reads the environment
    import ray.data  # noqa: PLC0415

    with ExitStack() as stack:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if is_own:
            options |= {
                "address": "local",
                "num_cpus": num_workers,
                "object_store_memory": _OBJECT_STORE_BYTES,
                "include_dashboard": False,
                "_temp_dir": stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
                ),
            }
        stack.callback(ray.shutdown)
        handler = signal.getsignal(signal.SIGTERM)
        ray.init(**options)
        signal.signal(signal.SIGTERM, handler)  # Ray replaces it
        ray.data.DataContext.get_current().enable_progress_bars = False
        rows = [{"block": pickle.dumps(block)} for block in blocks]
        results = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            BlockTranslator,
            fn_constructor_args=(chosen, columns, directory.resolve()),
            compute=ray.data.ActorPoolStrategy(size=min(num_workers, len(rows))),
            num_cpus=1,
        )
        try:
            for row in results.iter_rows():
                yield pickle.loads(row["result"])  # noqa: S301 - from our own processes
        except ray.exceptions.RayError as error:
            raise EngineError(f"a process of Ray failed: {str(error).strip().splitlines()[-1]}") from error


def _check_reachable(address: str) -> None:
    # Ray tries for minutes.
    host, _, port = address.rpartition(":")
    if "/" in address or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise DatasetError(ADDRESS_VARIABLE, address, f"the address of a running cluster ({error})") from error


def _has_token() -> bool:
    return bool(os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"))
