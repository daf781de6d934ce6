"""Look for known vulnerabilities in what the lock files pin: `python deploy/image/audit.py`.

With $DRAGOMAN_ADVISORIES, a directory of advisories in the format of OSV (the unpacked
https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip), nothing is fetched. Otherwise pip-audit asks the
package index; where its data cannot be reached, this says SKIPPED, or fails with --required.
"""

import argparse
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

_HERE: Final = Path(__file__).parent
_BUILD: Final = _HERE.parents[1] / "build" / "audit"
_RELEASE: Final = "https://pypi.org/pypi/{}/{}/json"
"""Where pip-audit finds what is known of a release; an index that is a mirror need not have it."""

_TOOL: Final = "pip-audit>=2.9,<3"
_CONNECT_S: Final = 10


def pinned(lock: str) -> dict[str, Version]:
    """Return the packages of a lock file."""
    lines = (line.split()[0] for line in lock.splitlines() if "==" in line and not line.startswith((" ", "#")))
    pairs = (line.split(";")[0].split("==") for line in lines)
    return {canonicalize_name(name.partition("[")[0]): Version(version) for name, version in pairs}


def findings(packages: Mapping[str, Version], advisories: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each advisory that is not withdrawn and affects a pinned version."""
    for advisory in advisories:
        for affected in advisory.get("affected", ()):
            name = canonicalize_name(affected.get("package", {}).get("name", ""))
            if name in packages and not advisory.get("withdrawn") and _is_affected(packages[name], affected):
                yield f"{name} {packages[name]}: {advisory['id']} {advisory.get('summary', '')}".rstrip()


def _is_affected(version: Version, affected: Mapping[str, Any]) -> bool:
    if any(_version(listed) == version for listed in affected.get("versions", ())):
        return True
    ranges = (one["events"] for one in affected.get("ranges", ()) if one.get("type") == "ECOSYSTEM")
    return any(_is_within(version, events) for events in ranges)


def _is_within(version: Version, events: Iterable[Mapping[str, str]]) -> bool:
    """Say whether the last event up to a version begins a vulnerability; events are in order."""
    is_inside = False
    for event in events:
        ((kind, value),) = event.items()
        at = _version(value)
        if at is not None and (at <= version if kind in {"introduced", "fixed", "limit"} else at < version):
            is_inside = kind == "introduced"
    return is_inside


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _offline(directory: Path) -> int:
    files = sorted(directory.rglob("*.json"))
    if not files:
        print(f"audit: no advisories in {directory}", file=sys.stderr)
        return 1
    packages: dict[str, set[Version]] = {}
    found = set()
    for lock in sorted(_HERE.glob("*.lock")):
        own = pinned(lock.read_text(encoding="utf-8"))
        for name, version in own.items():
            packages.setdefault(name, set()).add(version)
        found |= set(findings(own, (json.loads(path.read_text(encoding="utf-8")) for path in files)))
    print("\n".join(sorted(found)) or f"audit: {len(packages)} packages, {len(files)} advisories, nothing known")
    return int(bool(found))


def _online() -> int:
    subprocess.run([sys.executable, "-m", "venv", _BUILD], check=True)  # noqa: S603 - our own interpreter
    install = [str(_BUILD / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", _TOOL]
    subprocess.run(install, check=True)  # noqa: S603
    flags = ["--strict", "--require-hashes", "--disable-pip", "--progress-spinner", "off"]
    locks = [flag for lock in sorted(_HERE.glob("*.lock")) for flag in ("--requirement", str(lock))]
    return subprocess.call([_BUILD / "bin" / "pip-audit", *flags, *locks])  # noqa: S603


def _unreachable() -> str:
    name, version = next(iter(pinned((_HERE / "cpu.lock").read_text(encoding="utf-8")).items()))
    address = _RELEASE.format(name, version)
    try:
        with urllib.request.urlopen(address, timeout=_CONNECT_S) as response:  # noqa: S310 - https, as written above
            return "" if "vulnerabilities" in json.load(response) else f"{address} has none"
    except (OSError, ValueError) as error:
        return f"{address}: {error}"


def main() -> int:
    """Return 1 if anything is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--required", action="store_true", help="fail where the data cannot be reached")
    required = parser.parse_args().required
    if directory := os.environ.get("DRAGOMAN_ADVISORIES"):
        return _offline(Path(directory))
    if why := _unreachable():
        print(f"SKIPPED: no data on vulnerabilities: {why}; give a copy in DRAGOMAN_ADVISORIES")
        return int(required)
    return _online()


if __name__ == "__main__":
    sys.exit(main())
