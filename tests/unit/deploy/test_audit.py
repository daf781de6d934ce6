from typing import Any

import pytest
from packaging.version import Version

from deploy.image.audit import findings, pinned

LOCK = "# made by uv\nnumpy==2.2.1 \\\n    --hash=sha256:aa\nPy_Yaml[x]==6.0 ; python_version > '3'\n    # via a==1\n"


def advisory(**affected: Any) -> dict[str, Any]:
    package = {"ecosystem": "PyPI", "name": "NumPy"}
    return {"id": "PYSEC-1", "summary": "bad", "affected": [{"package": package, **affected}]}


def between(*events: tuple[str, str]) -> dict[str, Any]:
    return advisory(ranges=[{"type": "ECOSYSTEM", "events": [{kind: version} for kind, version in events]}])


def test_the_packages_of_a_lock_file_are_those_pinned_in_it() -> None:
    assert pinned(LOCK) == {"numpy": Version("2.2.1"), "py-yaml": Version("6.0")}


@pytest.mark.parametrize(
    ("known", "is_found"),
    [
        (advisory(versions=["2.2.1"]), True),
        (advisory(versions=["2.2.2", "no version"]), False),
        (between(("introduced", "0"), ("fixed", "2.2.2")), True),
        (between(("introduced", "0"), ("fixed", "2.2.1")), False),
        (between(("introduced", "2.3")), False),
        (between(("introduced", "0"), ("last_affected", "2.2.1")), True),
        (between(("introduced", "0"), ("fixed", "1.0"), ("introduced", "2.0")), True),
        ({**advisory(versions=["2.2.1"]), "withdrawn": "2026-01-01T00:00:00Z"}, False),
    ],
)
def test_an_advisory_is_found_if_it_affects_the_pinned_version(known: dict[str, Any], is_found: bool) -> None:
    found = list(findings(pinned(LOCK), [known]))

    assert found == ["numpy 2.2.1: PYSEC-1 bad"] * is_found
