from pathlib import Path

import pytest

from dragoman_service.__main__ import main
from dragoman_service.security.api_keys import Permission, parse_callers

WORK = ("--decode-cost-per-min", "70")


def test_new_key_is_printed_once_and_its_entry_authenticates_the_caller(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["keys", "new", "shop", "--permissions", "translate, admin", "--tokens-per-min", "5", *WORK])

    printed = capsys.readouterr()
    key = printed.out.strip()
    entry = printed.err[printed.err.index("[[caller]]") :]
    caller = parse_callers(entry.encode()).with_key(key)
    assert code == 0
    assert key not in printed.err
    assert caller is not None
    assert (caller.name, caller.permissions) == ("shop", frozenset(Permission))
    assert (caller.tokens_per_min, caller.decode_cost_per_min) == (5.0, 70.0)


def test_key_permits_only_translation_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    main(["keys", "new", "shop"])

    assert 'permissions = ["translate"]' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["sh op"], "caller[0].name"),
        (['x"\n[[caller]]\nname = "y'], "caller[0].name"),
        (["shop", "--permissions", "fly"], "caller[0].permissions[0]"),
        (["shop", "--requests-per-s", "0"], "caller[0].requests_per_s"),
        (["shop", "--tokens-per-min", "nan"], "caller[0].tokens_per_min"),
    ],
)
def test_invalid_entry_is_rejected(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["keys", "new", *arguments])

    printed = capsys.readouterr()
    assert code == 2
    assert not printed.out
    assert expected in printed.err


def test_check_reports_invalid_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["keys", "new", "shop"])
    entry = capsys.readouterr().err
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(entry[entry.index("[[caller]]") :], encoding="utf-8")
    bad.write_text("[[caller]]", encoding="utf-8")

    assert main(["keys", "check", str(good)]) == 0
    assert main(["keys", "check", str(bad)]) == 1
    assert "caller[0].name: Field required" in capsys.readouterr().err
    assert main(["keys", "check", str(tmp_path / "missing")]) == 2
