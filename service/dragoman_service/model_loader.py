"""Loader of models: opens the tokenizer of a bundle and starts its workers and schedulers."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from dragoman_service.bundle.files import Bundle
from dragoman_service.config import Settings, settings_of_model
from dragoman_service.errors import ConfigError
from dragoman_service.models.lifecycle import ModelLoader
from dragoman_service.models.model import ModelRuntime, full_name
from dragoman_service.models.serving import SERVING_NAME, ServingSettings
from dragoman_service.observability.metrics import Metrics
from dragoman_service.runtimes.onnx.encoder import model_limits
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.scheduling.core_shares import CoreShares
from dragoman_service.scheduling.replicas import ReplicaScheduler, open_replicas
from dragoman_service.scheduling.scheduler import Scheduler
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.text.tokenizer import open_tokenizer
from dragoman_service.worker.__main__ import load_step_model
from dragoman_service.worker.messages import LoadCommand, Loaded
from dragoman_service.worker.supervisor import LoadLimits, WorkerSupervisor
from dragoman_service.worker.worker import Worker

log = logging.getLogger(__name__)


def onnx_loader(
    settings: Settings,
    metrics: Metrics,
    *,
    clock: Callable[[], float] = time.monotonic,
    stopping: threading.Event | None = None,
    loop: asyncio.AbstractEventLoop,
) -> ModelLoader:
    """Return a loader that starts a worker for each replica of a model, on consecutive devices.

    The schedulers of the models dispatch in `loop`.

    Once `stopping` is set, the loader and the warm-up of its models raise DrainingError.
    """
    cores = CoreShares()  # of all models on the CPU
    limits = LoadLimits(timeout_s=settings.models.load_timeout_s, stopping=stopping or threading.Event())

    def load(bundle: Bundle, serving: ServingSettings) -> ModelRuntime:
        own = settings_of_model(settings, serving, origin=bundle.directory.parent / SERVING_NAME)
        tokenizer = open_tokenizer(bundle)
        open_worker = partial(_open_worker, bundle, metrics=metrics, clock=clock, limits=limits)
        first, loaded = open_worker(own)

        def open_other(runtime: RuntimeSettings) -> WorkerSupervisor | Worker:
            return open_worker(own.model_copy(update={"runtime": runtime}))[0]

        others = own.runtime.of_other_replicas(loaded.device, loaded.precision)
        workers = open_replicas(first, [partial(open_other, runtime) for runtime in others])
        try:
            scheduling = scheduling_on(loaded, own, num_replicas=len(workers))
        except ConfigError:
            for worker in workers:
                worker.close(0.0)
            raise
        schedulers = [
            Scheduler(
                worker,
                model_limits(bundle.manifest),
                scheduling,
                metrics,
                clock,
                loop=loop,
                cores=cores if loaded.device == "cpu" else None,
            )
            for worker in workers
        ]
        return ModelRuntime(
            tokenizer=tokenizer,
            scheduler=schedulers[0] if len(schedulers) == 1 else ReplicaScheduler(schedulers, clock),
            precision=loaded.precision,
            device=loaded.device,
            weights_bytes=loaded.weights_bytes,
            cache_bytes=lambda: sum(scheduler.cache_bytes for scheduler in schedulers),
            process_bytes=[worker.resident_bytes for worker in workers if isinstance(worker, WorkerSupervisor)],
        )

    return load


def scheduling_on(loaded: Loaded, settings: Settings, *, num_replicas: int) -> SchedulingSettings:
    """Return the scheduling settings of each replica; ConfigError if the device has too little memory."""
    scheduling = settings.scheduling.on(loaded.device, num_replicas=num_replicas)
    memory = loaded.cache_memory
    if memory is None:
        return scheduling
    beam_size = settings.defaults.beam_size
    within = scheduling.within(memory, beam_size=beam_size)
    budget = {
        "available_bytes": memory.available_bytes,
        "segment_bytes": memory.segment_bytes(beam_size),
        "batches": within.num_workers,
        "batch_segments": within.max_batch_segments,
    }
    log.info("kv cache budget computed", extra=budget)
    return within


def _open_worker(
    bundle: Bundle, settings: Settings, *, metrics: Metrics, clock: Callable[[], float], limits: LoadLimits
) -> tuple[WorkerSupervisor | Worker, Loaded]:
    # Loads the model in a separate process or in this one (`runtime.isolation`).
    command = LoadCommand(
        directory=bundle.directory,
        checked_files=bundle.checked_files,
        settings=settings.runtime,
        niceness=settings.scheduling.niceness,
        log_level=logging.getLogger().getEffectiveLevel(),
    )
    if settings.runtime.isolation == "process":
        name = full_name(bundle.manifest.name, bundle.manifest.version)
        supervisor = WorkerSupervisor(
            command, name=name, module="dragoman_service.worker", metrics=metrics, limits=limits
        )
        return supervisor, supervisor.process.loaded
    model, loaded = load_step_model(command)
    return Worker(model, clock=clock, niceness=command.niceness), loaded
