"""Versions are swapped under load without failed requests."""

import asyncio
import ctypes
import gc
import json
import os
import shutil
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.bundle.files import MANIFEST_NAME
from dragoman_service.models.serving import SERVING_NAME
from tests.integration.running_server import RunningServer, running_server
from tests.tiny_bundle import build_tiny_bundle
from tests.waiting import until

NUM_SWAPS = 10
NUM_CALLERS = 4
NUM_WARMING_SWAPS = 4  # until allocators stop growing
MAX_GROWTH_BYTES = 14 << 20  # measured: each leaked tiny model costs 2.5 MB, so 10 of them 25 MB


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two bundles with different networks."""
    directory = tmp_path_factory.mktemp("bundles")
    for seed in (1, 2):
        build_tiny_bundle(directory / str(seed), version=str(seed), precisions=("fp32",), seed=seed)
    return directory


@pytest.fixture
def models(bundles: Path, tmp_path: Path) -> Path:
    """A model directory with tiny/1 that serves only the latest version."""
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / SERVING_NAME).write_text('versions = "latest:1"\n', encoding="utf-8")
    add_version(bundles, tmp_path / "models", "1")
    return tmp_path / "models"


@pytest.fixture
async def server(models: Path) -> AsyncIterator[RunningServer]:
    """A server that reads the model directory only on `refresh` or on calls."""
    async with running_server(models, models__poll_interval_s=0, models__settle_s=0) as server:
        yield server


def add_version(bundles: Path, models: Path, version: str) -> None:
    """Add a version to the model directory atomically."""
    hidden = models / "tiny" / f".{version}"
    shutil.copytree(bundles / str(1 + int(version) % 2), hidden)
    manifest = json.loads((hidden / MANIFEST_NAME).read_text(encoding="utf-8"))
    (hidden / MANIFEST_NAME).write_text(json.dumps({**manifest, "version": version}), encoding="utf-8")
    hidden.rename(models / "tiny" / version)


async def listed_versions(server: RunningServer) -> dict[str, pb.ModelVersion]:
    listed = await server.model_service.ListModels(pb.ListModelsRequest())
    return {version.version: version for model in listed.models for version in model.versions}


async def answered_version(server: RunningServer, text: str = "A man.") -> str:
    version: str = (await server.translate(text, model="tiny")).model_version
    return version


def numbered(number: int) -> str:
    """Return one of 20 sentences in letters that the tiny vocabulary can spell; it cannot spell digits."""
    return f"A {'red ' * (number % 20)}ball."


async def keep_translating(server: RunningServer, answers: list[str], is_over: asyncio.Event) -> None:
    """Translate texts until `is_over` is set; any error fails the test."""
    while not is_over.is_set():
        answers.append(await answered_version(server, numbered(len(answers))))


async def swap(server: RunningServer, bundles: Path, models: Path, version: int) -> None:
    """Add a version and wait until the previous version is unloaded."""
    add_version(bundles, models, str(version))
    await asyncio.to_thread(server.app._models.refresh)
    assert await answered_version(server) == str(version)
    await until(
        lambda: server.sample("dragoman_model_state", model="tiny", version=str(version - 1), state="draining") == 0
    )
    shutil.rmtree(models / "tiny" / str(version - 1))


def resident_bytes() -> int:
    """Return the memory of this process after the allocator has returned unused memory."""
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
async def test_swaps_under_load_neither_fail_requests_nor_leak_memory(
    server: RunningServer, bundles: Path, models: Path
) -> None:
    answers: list[str] = []
    is_over = asyncio.Event()
    callers = [asyncio.ensure_future(keep_translating(server, answers, is_over)) for _ in range(NUM_CALLERS)]
    for version in range(2, NUM_WARMING_SWAPS + 2):
        await swap(server, bundles, models, version)
    server.models.clear()
    gc.collect()
    before_bytes = resident_bytes()

    for version in range(NUM_WARMING_SWAPS + 2, NUM_WARMING_SWAPS + NUM_SWAPS + 2):
        await swap(server, bundles, models, version)
        server.models.clear()
    is_over.set()
    await asyncio.gather(*callers)

    last = NUM_WARMING_SWAPS + NUM_SWAPS + 1
    assert set(answers) <= {str(version) for version in range(1, last + 1)}
    assert len(set(answers)) > NUM_SWAPS // 2
    assert resident_bytes() - before_bytes < MAX_GROWTH_BYTES
    assert list(await listed_versions(server)) == [str(last)]
    assert server.sample("dragoman_model_swaps_total", model="tiny") == last - 1
    assert server.sample("dragoman_queue_segments") == server.sample("dragoman_queue_tokens") == 0
    assert server.sample("dragoman_model_load_failures_total", model="tiny") == 0
    samples = [sample for family in server.metrics.registry.collect() for sample in family.samples]
    assert {sample.labels["status"] for sample in samples if sample.name == "dragoman_requests_total"} == {"OK"}


async def test_sessions_and_tokenizer_of_an_unloaded_version_are_freed(
    server: RunningServer, bundles: Path, models: Path
) -> None:
    await answered_version(server)
    resolved = server.app._models.resolve("tiny", "en", "de")
    network = server.model.inner
    references: list[weakref.ref[Any]] = [
        weakref.ref(resolved),
        weakref.ref(resolved.scheduler),
        weakref.ref(resolved.tokenizer),
    ]
    references += [weakref.ref(network), weakref.ref(network._sessions.encoder)]  # type: ignore[attr-defined]
    del resolved, network
    server.models.clear()

    await swap(server, bundles, models, 2)

    await until(lambda: all(reference() is None for reference in references))


async def test_requests_in_progress_finish_on_the_old_version(
    server: RunningServer, bundles: Path, models: Path
) -> None:
    old = server.model
    old.halt()
    waiting = [asyncio.ensure_future(answered_version(server, numbered(number))) for number in range(8)]
    await old.halted_step()
    add_version(bundles, models, "2")

    await asyncio.to_thread(server.app._models.refresh)

    assert await answered_version(server) == "2"  # while the old version is halted
    assert (await listed_versions(server))["1"].state == pb.MODEL_STATE_DRAINING
    assert not any(call.done() for call in waiting)
    old.resume()
    assert set(await asyncio.gather(*waiting)) == {"1"}
    await until(lambda: server.sample("dragoman_model_state", model="tiny", version="1", state="draining") == 0)


async def test_version_with_a_deleted_directory_still_returns_alignments(server: RunningServer, models: Path) -> None:
    shutil.rmtree(models / "tiny" / "1")  # as after a swap, while this version finishes its requests

    answer = await server.translate("A man.", options=pb.DecodingOptions(return_alignment=True))

    assert answer.translations[0].hypotheses[0].alignment


async def test_all_decoding_threads_of_all_models_are_warm_before_requests_are_accepted(tiny_models: Path) -> None:
    async with running_server(tiny_models, scheduling__num_workers=3) as server:
        assert [model.num_batches for model in server.models] == [3, 3]
        assert server.sample("dragoman_decoder_steps_total") > 0
        assert server.sample("dragoman_segments_total", outcome="ok") == 0
