import pytest
from pydantic import ValidationError

from dragoman_service.decoding.step_model import CacheMemory
from dragoman_service.errors import ConfigError
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.threads import num_cores


@pytest.mark.parametrize(
    ("own", "device", "num_replicas", "expected"),
    [
        (None, "cpu", 1, num_cores()),
        (None, "cpu", num_cores(), 1),
        (None, "cpu", 2 * num_cores(), 1),
        (None, "cuda", 1, 2),
        (None, "cuda", 4, 2),
        (3, "cpu", 1, 3),
        (3, "cuda", 1, 3),
    ],
)
def test_default_is_a_worker_thread_per_core_and_two_on_a_gpu(
    own: int | None, device: str, num_replicas: int, expected: int
) -> None:
    assert SchedulingSettings(num_workers=own).on(device, num_replicas=num_replicas).num_workers == expected


def test_niceness_depends_on_short_slices_unless_it_is_set() -> None:
    unset, explicit = SchedulingSettings(), SchedulingSettings(decoding_niceness=7)

    assert (unset.niceness, unset.with_short_slices().niceness) == (15, 0)
    assert (explicit.niceness, explicit.with_short_slices().niceness) == (7, 7)


@pytest.mark.parametrize(
    "setting", [{"max_queue_segments": 0}, {"num_workers": 0}, {"max_bulk_wait_s": -1}, {"no_such_setting": 1}]
)
def test_values_out_of_range_and_unknown_keys_are_invalid(setting: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        SchedulingSettings(**setting)  # type: ignore[arg-type]


def _memory(segments: float) -> CacheMemory:
    # 1,000 bytes per segment with a beam of 4
    return CacheMemory(available_bytes=int(1000 * segments), source_bytes=200, row_bytes=200)


@pytest.mark.parametrize(
    ("segments", "fitting"), [(1.9, 0), (2, 1), (3.5, 2), (4, 2), (8, 4), (9, 8), (16, 8), (17, 16), (100, 96), (-5, 0)]
)
def test_batches_have_sizes_that_a_device_steps(segments: float, fitting: int) -> None:
    assert _memory(segments).max_segments(4, num_batches=1) == fitting
    assert _memory(2 * segments).max_segments(4, num_batches=2) == fitting


@pytest.mark.parametrize(
    ("asked", "segments", "rows"),
    [
        ({}, 48, 192),
        ({"max_batch_segments": 40}, 40, 160),
        ({"max_batch_segments": 400}, 48, 192),
        ({"max_batch_rows": 100}, 48, 100),
        ({"num_workers": 1}, 96, 384),
    ],
)
def test_batch_size_is_limited_by_memory_and_settings(asked: dict[str, int], segments: int, rows: int) -> None:
    settings = SchedulingSettings.model_validate(asked).on("cuda").within(_memory(100), beam_size=4)

    assert (settings.max_batch_segments, settings.max_batch_rows) == (segments, rows)


@pytest.mark.parametrize(("asked", "segments"), [({}, 128), ({"max_batch_segments": 1000}, 1000)])
def test_default_batch_has_at_most_128_segments(asked: dict[str, int], segments: int) -> None:
    settings = SchedulingSettings.model_validate(asked).on("cuda").within(_memory(10_000), beam_size=1)

    assert settings.max_batch_segments == segments


def test_memory_too_small_for_a_segment_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="at least 4000 bytes") as error:
        SchedulingSettings().on("cuda").within(_memory(3), beam_size=4)

    assert (error.value.setting, error.value.value) == ("runtime.gpu_memory_budget_bytes", 3000)
