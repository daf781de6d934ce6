from dataclasses import replace

import pytest

from dragoman_service.security.api_keys import (
    Permission,
    StoredKey,
    key_id,
    new_key,
    parse_callers,
    parse_stored,
)
from dragoman_service.security.authentication import peer_name, unmapped_peer

KEY, OTHER_KEY, UNKNOWN_KEY = new_key(), new_key(), new_key()
STORED = str(StoredKey.of(KEY))
NAMED = '[[caller]]\nname = "shop"\n'
SHOP = f'{NAMED}keys = ["{STORED}"]\npermissions = ["translate"]\n'
OPS = '[[caller]]\nname = "ops"\ncertificates = ["ops.example.com", "ops"]\npermissions = ["admin", "translate"]\n'


def problem(content: str | bytes) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_callers(content if isinstance(content, bytes) else content.encode())
    return str(caught.value)


def test_caller_is_found_by_any_of_its_keys() -> None:
    both = SHOP.replace(f'"{STORED}"', f'"{STORED}", "{StoredKey.of(OTHER_KEY)}"')
    callers = parse_callers(both.encode())

    found = callers.with_key(KEY)

    assert found is not None
    assert found is callers.with_key(OTHER_KEY) is callers.named("shop")
    assert (found.name, found.permissions) == ("shop", frozenset({Permission.TRANSLATE}))
    assert [callers.with_key(key) for key in (UNKNOWN_KEY, KEY + "x", "")] == [None] * 3


@pytest.mark.parametrize("index", [0, 1, 15, -1])
def test_each_byte_of_the_digest_is_compared(index: int) -> None:
    stored = StoredKey.of(KEY)
    digest = bytearray(stored.digest)
    digest[index] ^= 1

    assert stored.matches(KEY)
    assert not replace(stored, digest=bytes(digest)).matches(KEY)


def test_caller_is_found_by_any_name_of_its_certificate() -> None:
    callers = parse_callers((SHOP + OPS).encode())

    assert callers.with_certificate(("nobody", "ops")) is callers.named("ops")
    assert [callers.with_certificate(names) for names in (("nobody",), ())] == [None, None]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "caller: Field required"),
        ("caller = []", "caller: Tuple should have at least 1 item"),
        ("[[caller]\n", "not TOML"),
        (b"\xff", "not TOML: not UTF-8"),
        ("caller = " + "[" * 3000, "not TOML: nested too deeply"),
        (SHOP + "color = 1", "caller[0].color: Extra inputs are not permitted"),
        (SHOP.replace("shop", "sh op"), "caller[0].name: String should match pattern"),
        (SHOP.replace("shop", "ipv4:10.0.0.7"), "caller[0].name: String should match pattern"),
        (SHOP.replace("translate", "fly"), "caller[0].permissions[0]: Input should be 'translate' or 'admin'"),
        (SHOP.replace('"translate"', ""), "caller[0].permissions: Frozenset should have at least 1 item"),
        (f'{NAMED}permissions = ["admin"]', "caller[0]: must have keys, certificates or subjects"),
        (SHOP + "requests_per_s = 0", "caller[0].requests_per_s: Input should be greater than 0"),
        (SHOP + "requests_per_s = nan", "caller[0].requests_per_s: Input should be a finite number"),
        (SHOP + "requests_per_s = 1e7", "caller[0].requests_per_s: Input should be less than or equal to 1000000"),
        (SHOP + "tokens_per_min = inf", "caller[0].tokens_per_min: Input should be a finite number"),
        (SHOP + "tokens_per_min = -1", "caller[0].tokens_per_min: Input should be greater than 0"),
        (SHOP + OPS + OPS, "duplicate name 'ops'"),
        pytest.param(SHOP + SHOP.replace("shop", "shop2"), f"duplicate key id '{STORED[:12]}'", id="same key id"),
        (OPS + OPS.replace('"ops"\n', '"ops2"\n'), "duplicate certificate 'ops.example.com'"),
    ],
)
def test_invalid_callers_file_names_the_fault(content: str | bytes, expected: str) -> None:
    assert expected in problem(content)


def test_key_instead_of_hash_is_rejected_and_not_shown() -> None:
    found = problem(SHOP.replace(STORED, KEY))

    assert "caller[0]: keys[0] must be ID:SHA256" in found
    assert KEY not in found


def test_new_keys_are_random_and_only_their_hashes_are_stored() -> None:
    keys = {new_key() for _ in range(100)}
    key = keys.pop()
    stored, secret = StoredKey.of(key), key.split("_", 2)[2]

    assert len(keys) == 99
    assert len(secret) == 43  # base64 of 32 bytes
    assert parse_stored(str(stored)).matches(key)
    assert not stored.matches(key[:-1] + ("a" if key[-1] != "a" else "b"))  # has the same id
    assert secret not in str(stored) + repr(stored)
    assert stored.digest.hex() not in repr(stored)


@pytest.mark.parametrize("text", ["", "dgm", "x_0123_secret", "Bearer", "\udcff", "dgm__", "dgm_0123"])
def test_text_that_is_not_a_key_matches_nothing(text: str) -> None:
    assert not StoredKey.of(new_key()).matches(text)
    assert key_id(text) in {"", "0123"}


@pytest.mark.parametrize(
    "entry",
    ["", "0123456789ab", "0123456789ab:00", f"0123456789AB:{'0' * 64}", new_key()],
    ids=["empty", "id only", "short hash", "upper case id", "a key"],
)
def test_invalid_stored_key_is_rejected_and_not_shown(entry: str) -> None:
    with pytest.raises(ValueError, match=r"must be ID:SHA256") as caught:
        parse_stored(entry)

    assert not entry or entry not in str(caught.value)


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("ipv4:10.0.0.7:54321", "ipv4:10.0.0.7"),
        ("ipv6:%5B::1%5D:54321", "ipv6:[::1]"),
        ("ipv6:%5B2001:db8:1:2:3::4%5D:54321", "ipv6:[2001:db8:1:2::/64]"),
        ("ipv6:[2001:db8:1:2:ffff::9]:1", "ipv6:[2001:db8:1:2::/64]"),
        ("ipv6:%5Bfe80::1%25eth0%5D:54321", "ipv6:[fe80::/64]"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:54321", "ipv4:10.0.0.7"),
        ("ipv6:nonsense:1", "ipv6:nonsense"),
        ("unix:/run/dragoman.sock", "unix:/run/dragoman.sock"),
        ("unix:", "unix:"),
    ],
)
def test_peer_name_identifies_the_host(peer: str, name: str) -> None:
    assert peer_name(peer) == name


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("ipv6:%5B::ffff:10.0.0.7%5D:54321", "ipv4:10.0.0.7:54321"),
        ("ipv6:[::ffff:10.0.0.7]:54321", "ipv4:10.0.0.7:54321"),
        ("ipv4:10.0.0.7:54321", "ipv4:10.0.0.7:54321"),
        ("ipv6:[2001:db8::1]:54321", "ipv6:[2001:db8::1]:54321"),
        ("unix:", "unix:"),
    ],
)
def test_ipv4_client_of_a_port_for_both_versions_has_its_ipv4_address(peer: str, expected: str) -> None:
    assert unmapped_peer(peer) == expected
