import pytest
from pydantic import ValidationError

from service.engine.settings import SchedulingSettings
from service.threads import num_cores


def test_unless_told_every_core_decodes_and_one_thread_serves_a_gpu() -> None:
    unset = SchedulingSettings()

    assert unset.num_decoding_threads is None
    assert unset.on("cpu").num_decoding_threads == num_cores()
    assert unset.on("cuda").num_decoding_threads == 1
    assert unset.on("cuda", num_engines=4).num_decoding_threads == 1
    assert unset.on("cpu", num_engines=num_cores()).num_decoding_threads == 1
    assert unset.on("cpu", num_engines=2 * num_cores()).num_decoding_threads == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_number_of_threads_that_is_set_holds_on_every_device(device: str) -> None:
    assert SchedulingSettings(num_decoding_threads=3).on(device).num_decoding_threads == 3


@pytest.mark.parametrize(
    "setting", [{"max_queue_segments": 0}, {"num_decoding_threads": 0}, {"bulk_patience_s": -1}, {"no_such_setting": 1}]
)
def test_a_bad_range_or_an_unknown_key_is_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        SchedulingSettings(**setting)  # type: ignore[arg-type]
