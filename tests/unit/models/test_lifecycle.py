"""Loading, unloading and labelling of versions on demand, and the states of a version."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.bundle.files import Bundle
from dragoman_service.errors import (
    DrainingError,
    EngineError,
    InvalidFieldError,
    ModelNotFoundError,
    ModelStateError,
    StartingError,
)
from dragoman_service.models.lifecycle import Lifecycle, check_transition, entry_of
from dragoman_service.models.model import MAX_LABELS, LoadedModel, ModelRuntime, ModelState
from dragoman_service.models.serving import ServingSettings
from dragoman_service.observability.metrics import Metrics
from tests.unit.models.model_fakes import (
    FakeScheduler,
    do_nothing,
    load_runtime,
    loaded_repository,
    make_repository,
    make_runtime,
    resolved,
    states,
    write_bundle,
    write_serving,
)
from tests.waiting import wait_until

_STATES: dict[str, ModelState | None] = {"absent": None, **{state.value: state for state in ModelState}}
_ALLOWED = {
    *(("absent", "loading"), ("absent", "failed"), ("loading", "ready"), ("loading", "failed")),
    *(("loading", "draining"), ("ready", "draining"), ("failed", "loading"), ("failed", "draining")),
    *(("failed", "absent"), ("draining", "absent")),
}


@pytest.mark.parametrize("before", _STATES)
@pytest.mark.parametrize("after", _STATES)
def test_state_transition_that_would_lose_a_model_is_an_internal_error(before: str, after: str) -> None:
    is_allowed = before == after or (before, after) in _ALLOWED

    with nullcontext() if is_allowed else pytest.raises(AssertionError, match="tiny/1"):
        check_transition("tiny/1", _STATES[before], _STATES[after])


def make_lifecycle() -> Lifecycle:
    return Lifecycle(load_runtime, Metrics(CollectorRegistry()), warm_up=do_nothing, unload_timeout_s=0)


def test_a_failed_attempt_to_load_a_ready_version_leaves_it_ready(tmp_path: Path) -> None:
    lifecycle, directory = make_lifecycle(), write_bundle(tmp_path, "tiny/1")
    lifecycle.load(directory)

    lifecycle.fail(entry_of(directory), EngineError("damaged"))

    (entry,) = lifecycle.registry.entries.values()
    assert entry.state is ModelState.READY
    assert entry.model is not None


def test_a_failed_version_that_is_being_loaded_again_is_not_removed(tmp_path: Path) -> None:
    lifecycle, entry = make_lifecycle(), entry_of(write_bundle(tmp_path, "tiny/1"))
    lifecycle.fail(entry, EngineError("damaged"))
    failed = lifecycle.registry.entries["tiny/1"]
    assert lifecycle.claim(entry) is None

    lifecycle.remove(failed)

    assert lifecycle.registry.entries["tiny/1"].state is ModelState.LOADING


def test_every_change_of_state_is_checked(tmp_path: Path) -> None:
    lifecycle, directory = make_lifecycle(), write_bundle(tmp_path, "tiny/1")
    lifecycle.load(directory)

    with pytest.raises(AssertionError):
        lifecycle.remove(lifecycle.registry.entries["tiny/1"])  # READY, not drained

    assert lifecycle.registry.ready_versions("tiny") == ["1"]


def test_model_is_warmed_up_before_it_takes_requests(tmp_path: Path) -> None:
    seen: list[tuple[list[str], str]] = []

    def warm_up(model: LoadedModel) -> None:
        assert isinstance(model.scheduler, FakeScheduler)
        seen.append((list(model.scheduler.calls), states(repository)[model.full_name]))
        with pytest.raises(StartingError):
            repository.resolve("", "en", "de")

    write_bundle(tmp_path, "tiny/1")
    repository = make_repository(tmp_path, warm_up=warm_up)
    repository.load_all()

    assert seen == [([], "loading")]
    assert states(repository) == {"tiny/1": "ready"}


def test_failed_warm_up_leaves_the_old_version_active(tmp_path: Path) -> None:
    def warm_up(model: LoadedModel) -> None:
        if model.version == "2":
            raise EngineError("decoding failed")

    repository = loaded_repository(tmp_path, "tiny/1", warm_up=warm_up)
    write_bundle(tmp_path, "tiny/2")

    with pytest.raises(ModelStateError, match="tiny/2 could not be loaded: decoding failed"):
        repository.load("tiny/2")

    assert states(repository) == {"tiny/2": "failed", "tiny/1": "ready"}
    assert resolved(repository, "tiny") == "tiny/1"


def test_old_version_takes_requests_while_new_one_is_loaded(tmp_path: Path) -> None:
    may_load = threading.Event()

    def load(bundle: Bundle, serving: ServingSettings) -> ModelRuntime:
        assert bundle.directory.name == "1" or may_load.wait(30)
        return load_runtime(bundle, serving)

    repository = loaded_repository(tmp_path, "tiny/1", load=load)
    write_bundle(tmp_path, "tiny/2")
    with ThreadPoolExecutor(2) as pool:
        loads = [pool.submit(repository.load, "tiny/2") for _ in range(2)]  # the second waits for the first
        wait_until(lambda: states(repository).get("tiny/2") == "loading")

        assert resolved(repository, "tiny") == "tiny/1"
        with pytest.raises(StartingError):
            resolved(repository, "tiny/2")
        with pytest.raises(ModelStateError, match="is being loaded"):
            repository.unload("tiny/2")
        may_load.set()

        assert [load.result()[0].is_default for load in loads] == [True, True]
    assert resolved(repository, "tiny") == "tiny/2"


def test_loading_a_loaded_version_has_no_effect(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1")
    before = repository.resolve("tiny", "en", "de")

    repository.load("tiny/1")

    assert repository.resolve("tiny", "en", "de") is before


def test_unloaded_version_stays_usable_while_referenced(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2")
    model = repository.resolve("tiny/2", "en", "de")
    scheduler = model.scheduler
    assert isinstance(scheduler, FakeScheduler)
    with ThreadPoolExecutor(1) as pool:
        unload = pool.submit(repository.unload, "tiny/2")
        wait_until(lambda: states(repository)["tiny/2"] == "draining")

        assert resolved(repository, "tiny") == "tiny/1"
        with pytest.raises(DrainingError):
            resolved(repository, "tiny/2")
        with pytest.raises(ModelStateError, match="is being unloaded"):
            repository.load("tiny/2")
        assert scheduler.calls == ["start"]
        del model

        unload.result(timeout=30)
    assert scheduler.calls == ["start", "drain", "stop"]
    assert states(repository) == {"tiny/1": "ready"}


def test_stopping_does_not_wait_for_references_to_a_model(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2")
    model = repository.resolve("tiny/2", "en", "de")
    with ThreadPoolExecutor(1) as pool:
        unload = pool.submit(repository.unload, "tiny/2")
        wait_until(lambda: states(repository)["tiny/2"] == "draining")

        repository.stop()

        unload.result(timeout=30)
    assert isinstance(model.scheduler, FakeScheduler)
    assert "stop" in model.scheduler.calls
    with pytest.raises(DrainingError):
        repository.load("tiny/2")


def test_memory_of_unloaded_model_is_freed(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2")
    model = repository.resolve("tiny/2", "en", "de")
    left = weakref.ref(model), weakref.ref(model.scheduler)
    del model
    gc.disable()
    try:
        repository.unload("tiny/2")

        assert [reference() for reference in left] == [None, None]
    finally:
        gc.enable()


def test_model_in_reference_cycle_of_failed_request_is_freed(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2")

    def fail() -> None:
        model = repository.resolve("tiny/2", "en", "de")
        error = EngineError("as in a request")
        try:
            raise error  # its traceback and this frame refer to each other
        except EngineError:
            assert model

    fail()
    repository.unload("tiny/2")

    assert states(repository) == {"tiny/1": "ready"}


def test_metrics_show_the_state_of_each_version_until_it_is_unloaded(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2", metrics=Metrics(registry))

    def sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert sample("dragoman_model_state", model="tiny", version="2", state="ready") == 1
    assert sample("dragoman_model_state", model="tiny", version="2", state="loading") == 0
    assert sample("dragoman_model_load_duration_seconds_count") == 2
    assert not sample("dragoman_model_swaps_total", model="tiny")

    repository.unload("tiny/2")

    assert sample("dragoman_model_swaps_total", model="tiny") == 1
    for family in registry.collect():
        assert not [sample for sample in family.samples if sample.labels.get("version") == "2"]


def test_loading_a_missing_version_is_rejected(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1")

    with pytest.raises(ModelNotFoundError, match=r"tiny/2 cannot be loaded: no bundle at .*/tiny/2; available: tiny/1"):
        repository.load("tiny/2")
    with pytest.raises(InvalidFieldError, match="`name/version`"):
        repository.load("../tiny")


@pytest.mark.parametrize("model", ["tiny/2", "other/1"])
def test_unloading_an_unloaded_version_is_rejected(tmp_path: Path, model: str) -> None:
    with pytest.raises(ModelNotFoundError, match="available: tiny/1"):
        loaded_repository(tmp_path, "tiny/1").unload(model)


def test_last_version_of_a_model_can_be_unloaded(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1", "big/1")

    repository.unload("tiny/1")

    with pytest.raises(ModelNotFoundError, match="tiny is not served here; available: big/1"):
        resolved(repository, "tiny")
    assert resolved(repository) == "big/1"


def test_label_can_be_set_moved_and_removed(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2")

    repository.set_label("tiny/1", "stable")
    assert resolved(repository, "tiny@stable") == "tiny/1"
    assert [status.labels for status in repository.get_model("tiny@stable")] == [("stable",)]
    repository.set_label("tiny/2", "stable")
    repository.set_label("tiny/1", "canary")
    assert resolved(repository, "tiny@stable") == "tiny/2"
    repository.set_label("tiny", "stable")

    with pytest.raises(ModelNotFoundError, match="tiny@stable is not served here; available: tiny@canary"):
        resolved(repository, "tiny@stable")


def test_label_of_unloaded_version_is_rejected_with_its_version(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2")
    repository.set_label("tiny/2", "stable")

    repository.unload("tiny/2")

    with pytest.raises(ModelNotFoundError, match="tiny@stable, which is tiny/2, is not served here"):
        resolved(repository, "tiny@stable")


def test_model_with_unloaded_default_version_is_rejected(tmp_path: Path) -> None:
    write_serving(tmp_path, "tiny", 'default_version = "1"')
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2")
    repository.unload("tiny/1")

    for model in ("tiny", ""):
        with pytest.raises(ModelStateError, match="its default version is 1, which is not loaded"):
            resolved(repository, model)


@pytest.mark.parametrize("model", ["tiny/3", "other", "other/1"])
def test_label_of_unknown_version_is_rejected(tmp_path: Path, model: str) -> None:
    with pytest.raises(ModelNotFoundError, match="available: tiny/1"):
        loaded_repository(tmp_path, "tiny/1").set_label(model, "stable")


def test_label_of_failed_version_is_rejected(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1")
    (tmp_path / "tiny" / "2").mkdir()
    with pytest.raises(ModelStateError):
        repository.load("tiny/2")

    with pytest.raises(ModelStateError, match="tiny/2 is failed"):
        repository.set_label("tiny/2", "stable")


def test_number_of_labels_is_limited(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1")
    for number in range(MAX_LABELS):
        repository.set_label("tiny/1", f"label-{number}")

    with pytest.raises(InvalidFieldError, match="maximum: 100"):
        repository.set_label("tiny/1", "another")


def test_concurrent_unloads_of_a_version_unload_it_once(tmp_path: Path) -> None:
    scheduler = FakeScheduler()
    scheduler.may_drain.clear()
    repository = loaded_repository(tmp_path, "tiny/1", load=lambda *_: make_runtime(scheduler))
    with ThreadPoolExecutor(2) as pool:
        unloads = [pool.submit(repository.unload, "tiny/1") for _ in range(2)]
        wait_until(lambda: states(repository) == {"tiny/1": "draining"})
        scheduler.may_drain.set()

        outcomes = [unload.exception(timeout=30) for unload in unloads]

    assert scheduler.calls.count("stop") == 1
    assert all(outcome is None or isinstance(outcome, ModelNotFoundError) for outcome in outcomes)


@pytest.mark.parametrize(
    ("drains_in_time", "unload_timeout_s", "drain"), [(True, 60, "drain"), (False, 60, "drain"), (False, 0, "drain 0")]
)
def test_unloading_ends_at_its_timeout_and_logs_whether_all_requests_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, drains_in_time: bool, unload_timeout_s: float, drain: str
) -> None:
    caplog.set_level("INFO")
    scheduler = FakeScheduler(drains_in_time=drains_in_time)
    repository = loaded_repository(
        tmp_path, "tiny/1", load=lambda *_: make_runtime(scheduler), unload_timeout_s=unload_timeout_s
    )
    model = repository.resolve("tiny", "en", "de") if unload_timeout_s == 0 else None

    repository.unload("tiny/1")

    del model
    assert scheduler.calls == ["start", drain, "stop"]
    (record,) = [record for record in caplog.records if record.message == "model unloaded"]
    assert record.is_drained is drains_in_time  # type: ignore[attr-defined]
