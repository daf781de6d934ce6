import pytest
from pydantic import ValidationError

from dragoman_service.decoding.step_model import CacheMemory
from dragoman_service.errors import ConfigError
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.threads import num_cores


def test_unless_told_every_core_decodes_and_two_threads_serve_a_gpu() -> None:
    unset = SchedulingSettings()

    assert unset.num_workers is None
    assert unset.on("cpu").num_workers == num_cores()
    assert unset.on("cuda").num_workers == 2
    assert unset.on("cuda", num_replicas=4).num_workers == 2
    assert unset.on("cpu", num_replicas=num_cores()).num_workers == 1
    assert unset.on("cpu", num_replicas=2 * num_cores()).num_workers == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_number_of_threads_that_is_set_holds_on_every_device(device: str) -> None:
    assert SchedulingSettings(num_workers=3).on(device).num_workers == 3


def test_without_short_slices_of_others_decoding_has_a_lower_priority_unless_told() -> None:
    unset, told = SchedulingSettings(), SchedulingSettings(decoding_niceness=7)

    assert (unset.niceness, unset.beside_short_slices().niceness) == (15, 0)
    assert (told.niceness, told.beside_short_slices().niceness) == (7, 7)


@pytest.mark.parametrize(
    "setting", [{"max_queue_segments": 0}, {"num_workers": 0}, {"max_bulk_wait_s": -1}, {"no_such_setting": 1}]
)
def test_a_bad_range_or_an_unknown_key_is_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        SchedulingSettings(**setting)  # type: ignore[arg-type]


def _memory(segments: float) -> CacheMemory:
    """Return memory for so many segments with a beam of 4, of 1,000 bytes each."""
    return CacheMemory(available_bytes=int(1000 * segments), source_bytes=200, row_bytes=200)


@pytest.mark.parametrize(
    ("segments", "fitting"), [(1.9, 0), (2, 1), (3.5, 2), (4, 2), (8, 4), (9, 8), (16, 8), (17, 16), (100, 96), (-5, 0)]
)
def test_memory_holds_batches_of_the_sizes_that_a_device_steps(segments: float, fitting: int) -> None:
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
def test_a_batch_has_what_memory_holds_unless_less_is_asked_for(
    asked: dict[str, int], segments: int, rows: int
) -> None:
    settings = SchedulingSettings.model_validate(asked).on("cuda").within(_memory(100), beam_size=4)

    assert (settings.max_batch_segments, settings.max_batch_rows) == (segments, rows)


def test_a_batch_has_128_segments_at_most_unless_more_are_asked_for() -> None:
    asked = SchedulingSettings(max_batch_segments=1000)

    found = [one.on("cuda").within(_memory(10_000), beam_size=1) for one in (SchedulingSettings(), asked)]

    assert [one.max_batch_segments for one in found] == [128, 1000]


def test_memory_without_room_for_a_segment_is_refused_with_what_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"'runtime\.gpu_memory_budget_bytes' is 3000: expected at least 4000 bytes"):
        SchedulingSettings().on("cuda").within(_memory(3), beam_size=4)
