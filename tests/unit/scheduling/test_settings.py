import pytest
from pydantic import ValidationError

from service.scheduling.settings import SchedulingSettings


def test_every_setting_is_described() -> None:
    assert all(field.description for field in SchedulingSettings.model_fields.values())


def test_the_defaults_decode_on_every_core() -> None:
    assert SchedulingSettings().num_decoding_threads >= 1


@pytest.mark.parametrize("setting", [{"max_queue_segments": 0}, {"bulk_patience_s": -1}, {"no_such_setting": 1}])
def test_a_bad_range_or_an_unknown_key_is_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        SchedulingSettings(**setting)  # type: ignore[arg-type]
