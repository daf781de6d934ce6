import pytest

from dragoman_service.config import Settings, load_settings
from dragoman_service.errors import ConfigError
from dragoman_service.processes.owner import check_support


def test_unix_socket_cannot_be_shared() -> None:
    settings = load_settings(flags={"grpc.processes": "2", "grpc.host": "unix:/run/dragoman.sock"})

    with pytest.raises(ConfigError) as caught:
        check_support(settings)

    assert (caught.value.setting, caught.value.value) == ("grpc.processes", 2)
    assert "unix:/run/dragoman.sock" in caught.value.expected


def test_other_systems_have_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")

    with pytest.raises(ConfigError) as caught:
        check_support(Settings())

    assert caught.value.setting == "grpc.processes"


@pytest.mark.parametrize("processes", ["0", "257", "two"])
def test_number_of_processes_is_checked(processes: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(flags={"grpc.processes": processes})

    assert caught.value.setting == "grpc.processes"
