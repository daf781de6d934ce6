from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.bundle.files import Bundle
from dragoman_service.errors import (
    BundleError,
    ConfigError,
    DrainingError,
    EngineError,
    InvalidFieldError,
    ModelNotFoundError,
)
from dragoman_service.models.model import LoadedModel, ModelRuntime, ModelState
from dragoman_service.models.serving import ServingSettings
from dragoman_service.observability.metrics import Metrics
from dragoman_service.scheduling.scheduler import Scheduler
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.worker import Worker
from tests.background_loop import background_loop
from tests.fakes import ToyModel, make_segment
from tests.unit.models.model_fakes import (
    FakeScheduler,
    loaded_repository,
    make_repository,
    make_runtime,
    resolved,
    write_bundle,
)
from tests.unit.text.text_fakes import TOKENIZER


def test_loaded_model_is_started_and_has_its_limits(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    repository = loaded_repository(tmp_path, "tiny/1", metrics=Metrics(registry))

    model = repository.resolve("tiny/1", "en", "de")

    assert isinstance(model.scheduler, FakeScheduler)
    assert model.scheduler.calls == ["start"]
    assert (model.full_name, model.max_source_tokens, model.max_target_tokens) == ("tiny/1", 16, 20)
    assert model.tokenizer is TOKENIZER
    labels = {"model": "tiny", "version": "1"}
    assert registry.get_sample_value("dragoman_model_info", {**labels, "precision": "int8", "device": "cpu"}) == 1
    memory = ("dragoman_model_weights_bytes", "dragoman_kv_cache_bytes")
    assert [registry.get_sample_value(name, labels) for name in memory] == [1000, 64]

    repository.stop()

    assert [registry.get_sample_value(name, labels) for name in memory] == [None, None]


_VERSIONS = ("tiny/9", "tiny/10", "tiny/2")
_NAMES = ("beta/3", "alpha/1", "alpha/2", "aardvark/1 fr de")
_TAGS = ("american/1", "british/1 en-GB de")


@pytest.mark.parametrize(
    ("models", "model", "source", "target", "expected"),
    [
        (_VERSIONS, "", "en", "de", "tiny/10"),
        (_VERSIONS, "tiny", "en", "de", "tiny/10"),
        (_VERSIONS, "tiny/9", "en", "de", "tiny/9"),
        (_NAMES, "", "en", "de", "alpha/2"),
        (_NAMES, "", "fr", "de", "aardvark/1"),
        (_TAGS, "", "EN", "de", "american/1"),
        (_TAGS, "", "en-gb", "de-AT-1996", "british/1"),
        (_TAGS, "", "en-AU", "DE", "american/1"),
        (_TAGS, "", "en-Latn-x-foo", "de", "american/1"),
        (_TAGS, "", "en-u-ca-buddhist", "de", "american/1"),
    ],
)
def test_request_gets_the_latest_version_of_the_first_name_with_the_closest_tag(
    tmp_path: Path, models: tuple[str, ...], model: str, source: str, target: str, expected: str
) -> None:
    assert resolved(loaded_repository(tmp_path, *models), model, source, target) == expected


@pytest.mark.parametrize(
    ("model", "source", "target", "message"),
    [
        ("other", "en", "de", "model: other is not served here; available: big/1, brazil/1, tiny/1, tiny/2"),
        ("tiny/3", "en", "de", "model: tiny/3 is not served here; available: big/1, brazil/1, tiny/1, tiny/2"),
        ("", "de", "en", "source_language: de to en is not served here; available: en to de, fr to en, pt-br to de"),
        (
            "",
            "en",
            "fr-CA",
            "target_language: en to fr-ca is not served here; available: en to de, fr to en, pt-br to de",
        ),
        ("big", "en", "de", "source_language: en to de is not served here; available: fr to en"),
        ("brazil", "pt-PT", "de", "source_language: pt-pt to de is not served here; available: pt-br to de"),
    ],
)
def test_error_of_unknown_model_lists_the_available_ones(
    tmp_path: Path, model: str, source: str, target: str, message: str
) -> None:
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2", "big/1 fr en", "brazil/1 pt-BR de")

    with pytest.raises(ModelNotFoundError) as caught:
        repository.resolve(model, source, target)

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("model", "source", "target", "field"),
    [
        ("a/b/c", "en", "de", "model"),
        ("../x", "en", "de", "model"),
        ("tiny\n", "en", "de", "model"),
        ("", "", "de", "source_language"),
        ("", "e", "de", "source_language"),
        ("", "en", "de_AT", "target_language"),
        ("", "en", "de-", "target_language"),
        ("", "en", "détente", "target_language"),
    ],
)
def test_malformed_names_and_tags_are_rejected(
    tmp_path: Path, model: str, source: str, target: str, field: str
) -> None:
    repository = loaded_repository(tmp_path, "tiny/1")

    with pytest.raises(InvalidFieldError) as caught:
        repository.resolve(model, source, target)

    assert caught.value.field == field


def test_models_are_listed_by_name_the_latest_version_first(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/9", "big/1", "tiny/10", "wide/1 fr de")

    listed = [(m.name, m.version, m.is_default, m.language_groups[0].is_default) for m in repository.list_models()]

    assert listed == [
        ("big", "1", True, True),
        ("tiny", "10", True, False),
        ("tiny", "9", False, False),
        ("wide", "1", True, True),
    ]
    assert {model.state for model in repository.list_models()} == {ModelState.READY}


def test_models_are_found_by_name_or_by_name_and_version(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2", "big/1")

    assert [model.version for model in repository.get_model("tiny")] == ["2", "1"]
    assert [model.version for model in repository.get_model("tiny/1")] == ["1"]
    with pytest.raises(ModelNotFoundError, match="model: tiny/3"):
        repository.get_model("tiny/3")
    with pytest.raises(InvalidFieldError):
        repository.get_model("")


def test_stopping_rejects_new_requests_and_stops_every_version(tmp_path: Path) -> None:
    schedulers = [FakeScheduler(), FakeScheduler()]
    remaining = iter(schedulers)
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2", load=lambda *_: make_runtime(next(remaining)))

    repository.stop()

    assert [scheduler.calls for scheduler in schedulers] == [["start", "stop"]] * 2
    with pytest.raises(DrainingError):
        repository.resolve("tiny", "en", "de")
    assert not any(model.is_default or model.language_groups[0].is_default for model in repository.list_models())


def test_model_that_is_stopped_while_loading_never_starts(tmp_path: Path) -> None:
    scheduler = FakeScheduler()

    def load(bundle: Bundle, serving: ServingSettings) -> ModelRuntime:
        repository.stop()
        return make_runtime(scheduler)

    write_bundle(tmp_path, "tiny/1")
    repository = make_repository(tmp_path, load=load)
    repository.load_all()

    assert scheduler.calls == ["stop"]
    with pytest.raises(DrainingError):
        repository.resolve("", "en", "de")


def test_scheduler_is_stopped_after_failed_warm_up(tmp_path: Path) -> None:
    scheduler = FakeScheduler()

    def fail(model: LoadedModel) -> None:
        raise EngineError("decoding failed")

    write_bundle(tmp_path, "tiny/1")
    repository = make_repository(tmp_path, load=lambda *_: make_runtime(scheduler), warm_up=fail)

    with pytest.raises(EngineError):
        repository.load_all()

    assert scheduler.calls == ["stop"]


def test_failed_load_at_start_is_raised_and_other_models_can_be_stopped(tmp_path: Path) -> None:
    started = FakeScheduler()

    def load(bundle: Bundle, serving: ServingSettings) -> ModelRuntime:
        if bundle.directory.name == "1":
            raise BundleError("encoder.onnx", found=3, expected=4, what="size in bytes")
        return make_runtime(started)

    write_bundle(tmp_path, "tiny/1")
    write_bundle(tmp_path, "tiny/2")
    repository = make_repository(tmp_path, load=load)

    with pytest.raises(BundleError, match=r"encoder.onnx: size in bytes is 3, expected 4"):
        repository.load_all()
    repository.stop()

    assert started.calls == ["start", "stop"]


def test_bundle_in_wrong_directory_is_rejected_before_loading(tmp_path: Path) -> None:
    write_bundle(tmp_path, "tiny/1").rename(tmp_path / "tiny" / "2")

    with pytest.raises(BundleError, match="name and version is tiny/1, expected tiny/2"):
        make_repository(tmp_path).load_all()


def test_files_and_hidden_directories_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    (tmp_path / "..data").mkdir()
    (tmp_path / "lost+found").mkdir()

    repository = loaded_repository(tmp_path, "tiny/1")

    assert [model.name for model in repository.list_models()] == ["tiny"]


@pytest.mark.parametrize("directory", ["missing", "."])
def test_directory_without_models_is_rejected(tmp_path: Path, directory: str) -> None:
    with pytest.raises(ConfigError, match=r"models\.directory"):
        make_repository(tmp_path / directory).load_all()


def test_real_scheduler_is_started_drained_and_stopped(tmp_path: Path) -> None:
    settings = SchedulingSettings(num_workers=1)
    model = ToyModel()
    scheduler = Scheduler(Worker(model), model.limits, settings, Metrics(CollectorRegistry()), loop=background_loop())
    repository = loaded_repository(tmp_path, "tiny/1", load=lambda *_: make_runtime(scheduler))

    repository.unload("tiny/1")

    with pytest.raises(DrainingError):
        scheduler.submit([make_segment(4)])
