"""Translation of blocks by a pool of Ray actors, each with its own engine or connection."""

import os
import secrets
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from dragoman.client.errors import DragomanError as CallError
from dragoman_service.dataset_translation.files import Block, read_block
from dragoman_service.dataset_translation.output import BlockResult, write_part
from dragoman_service.dataset_translation.settings import Columns, DatasetError
from dragoman_service.dataset_translation.translators import EngineSpec, ServerSpec
from dragoman_service.errors import DragomanError, EngineError

ADDRESS_VARIABLE: Final = "RAY_ADDRESS"
_CONNECT_TIMEOUT_S: Final = 10.0
_CHECK_INTERVAL_S: Final = 5.0
_RESTART_TIMEOUT_S: Final = 20.0  # of the head process
_OBJECT_STORE_BYTES: Final = 128 << 20  # only descriptions of blocks and results pass through it

_ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
_OWN_INSTANCE: Final = {
    "AUTOSCALER_METRIC_PORT": "0",  # any free one, so that runs on one machine do not compete for 44217
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on all systems: Ray listens on loopback only
}
_CLUSTER: Final = {
    "RAY_NUM_REDIS_GET_RETRIES": "1",  # attempts to connect, about 40 s each
}


class BlockTranslator:
    """Reads, translates and writes blocks."""

    def __init__(self, spec: EngineSpec | ServerSpec, columns: Columns, directory: Path) -> None:
        self._translator = spec.open()
        self._columns, self._directory = columns, directory

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


class HeadWatch:
    """Detects the end of Ray's head process, after which Ray waits forever or ends this process without a message."""

    def __init__(self, address: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._address, self._clock = address, clock
        self._check_at_s = self._connected_at_s = clock()

    def check(self) -> None:
        """Connect from time to time; raises EngineError if a lost head is not restarted in time."""
        now_s = self._clock()
        if now_s < self._check_at_s:
            return
        self._check_at_s = now_s + _CHECK_INTERVAL_S
        fault = _connection_fault(self._address)
        if fault is None:
            self._connected_at_s = now_s
        elif now_s - self._connected_at_s > _RESTART_TIMEOUT_S:
            raise EngineError(f"the head process of Ray at {self._address} has ended ({fault})")


def translate_blocks(
    blocks: Sequence[Block],
    spec: EngineSpec | ServerSpec,
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
    has_token = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    token = {"RAY_AUTH_TOKEN": secrets.token_hex(32)} if is_own and not has_token else {}
    for name, value in {**_ENVIRONMENT, **(_OWN_INSTANCE if is_own else _CLUSTER), **token}.items():
        os.environ.setdefault(name, value)  # read when Ray is imported
    import ray  # noqa: PLC0415 - the import takes seconds and reads the environment

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
        head = HeadWatch(ray.init(**options).address_info["gcs_address"])
        signal.signal(signal.SIGTERM, handler)  # Ray replaces it
        actor = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(BlockTranslator)
        translators = [actor.remote(spec, columns, directory.resolve()) for _ in range(min(num_workers, len(blocks)))]
        # Not `ray.util.ActorPool`, which gives blocks to actors that wait for a place in the cluster.
        running = {each.__ray_ready__.remote(): each for each in translators}
        remaining, num_unfinished = iter(blocks), len(blocks)
        try:
            while num_unfinished:
                finished, _ = ray.wait([*running], timeout=_CHECK_INTERVAL_S)
                head.check()
                if not finished:
                    continue
                (ended,) = finished
                translator, result = running.pop(ended), ray.get(ended)
                if (block := next(remaining, None)) is not None:
                    running[translator.process.remote(block)] = translator
                if isinstance(result, BlockResult):
                    num_unfinished -= 1
                    yield result
        except ray.exceptions.RayError as error:
            raise EngineError(f"a process of Ray failed: {str(error).strip().splitlines()[-1]}") from error


def _check_reachable(address: str) -> None:
    # Ray tries for minutes.
    if (fault := _connection_fault(address)) is not None:
        raise DatasetError(ADDRESS_VARIABLE, address, f"the address of a running cluster ({fault})") from fault


def _connection_fault(address: str) -> OSError | None:
    host, _, port = address.rpartition(":")
    if "/" in address or not port.isdigit():
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return error
    return None
