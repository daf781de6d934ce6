import resource

import pytest

from dragoman_service.app import raise_open_files


@pytest.mark.parametrize(
    ("before", "needed", "after", "is_warned"),
    [
        ((1024, 20_000), 1344, 20_000, False),
        ((1024, 1024), 1344, 1024, True),
        ((1024, 1100), 1344, 1100, True),
        ((1024, resource.RLIM_INFINITY), 1344, resource.RLIM_INFINITY, False),
        ((2048, 2048), 1344, 2048, False),
    ],
)
def test_limit_of_open_files_is_raised_as_far_as_allowed(
    before: tuple[int, int],
    needed: int,
    after: int,
    is_warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = list(before)
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.__setitem__(slice(None), new))

    raise_open_files(needed)

    assert limits[0] == after
    assert [record.levelname for record in caplog.records] == ["WARNING"] * is_warned


def test_refusal_to_raise_the_limit_is_a_warning_only_if_it_is_too_low(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 20_000))
    monkeypatch.setattr(resource, "setrlimit", refuse)

    raise_open_files(1000)
    assert not caplog.records
    raise_open_files(2000)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
