import pytest

from service.api.callers import peer_name


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("ipv4:10.0.0.7:54321", "ipv4:10.0.0.7"),
        ("ipv6:%5B::1%5D:54321", "ipv6:%5B::1%5D"),
        ("unix:/run/dragoman.sock", "unix:/run/dragoman.sock"),
        ("unix:", "unix:"),
    ],
)
def test_connections_of_one_host_share_a_name(peer: str, name: str) -> None:
    assert peer_name(peer) == name
