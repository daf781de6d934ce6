import pytest

from service.api.callers import StoredKey, key_id, new_key, parse_stored, store


def test_a_key_is_recognized_by_what_is_stored_of_it() -> None:
    key = new_key()

    assert parse_stored(str(store(key))).matches(key)


def test_no_two_keys_are_alike() -> None:
    assert len({new_key() for _ in range(100)}) == 100


def test_a_key_has_256_random_bits_and_what_is_stored_holds_none_of_them() -> None:
    key = new_key()
    secret = key.split("_", 2)[2]

    assert len(secret) == 43  # base64 of 32 bytes
    assert secret not in str(store(key)) + repr(store(key))


def test_another_key_with_the_same_id_is_not_recognized() -> None:
    key = new_key()

    assert not store(key).matches(key[:-1] + ("a" if key[-1] != "a" else "b"))


@pytest.mark.parametrize("text", ["", "dgm", "x_0123_secret", "Bearer", "\udcff", "dgm__", "dgm_0123"])
def test_what_is_no_key_matches_nothing(text: str) -> None:
    assert not store(new_key()).matches(text)
    assert key_id(text) in {"", "0123"}


@pytest.mark.parametrize(
    "entry",
    ["", "0123456789ab", "0123456789ab:00", f"0123456789AB:{'0' * 64}", new_key()],
    ids=["empty", "id only", "short hash", "upper case id", "a key"],
)
def test_an_entry_that_is_none_is_refused_without_being_shown(entry: str) -> None:
    with pytest.raises(ValueError, match=r"must be ID:SHA256") as caught:
        parse_stored(entry)

    assert not entry or entry not in str(caught.value)


def test_a_stored_key_does_not_show_its_hash_in_tracebacks() -> None:
    stored = StoredKey(key_id="0123456789ab", digest=b"\x01" * 32)

    assert "\\x01" not in repr(stored)
