"""Holds the contract to buf's rules: it is linted, and nothing that callers rely on is ever removed or changed.

    python proto/lint.py            lint, and compare with the contract as last accepted (`contract.binpb`)
    python proto/lint.py --accept   the same; if it passes, the contract as it stands becomes the accepted one

buf comes from the npm registry with its binary inside. Without npm the check is skipped with a word, except where the
environment has `CI` set: there it fails.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_PROTO = Path(__file__).resolve().parent
_ACCEPTED = _PROTO / "contract.binpb"
_RULES = ("--config", '{"version": "v2", "breaking": {"use": ["FILE"]}}')
"""The rules of buf.yaml, for an image has no configuration of its own."""
_BUF = ("--yes", "--ignore-scripts", "@bufbuild/buf@1.75.0")


def main() -> int:
    """Run the checks; the exit code is 0 if all passed or were skipped."""
    parser = argparse.ArgumentParser(description="lint the contract and refuse breaking changes")
    parser.add_argument("--accept", action="store_true", help="if it passes, remember the contract as it stands")
    is_accepting = parser.parse_args().accept
    npx = shutil.which("npx")
    if npx is None:
        print("buf: skipped, npm is not installed (its rules are checked in CI)", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    with tempfile.TemporaryDirectory() as folder:
        present = Path(folder) / _ACCEPTED.name
        passed = (
            _buf(npx, "lint", ".")
            and _buf(npx, "build", ".", "--exclude-source-info", "--output", str(present))
            and (not _ACCEPTED.exists() or _buf(npx, "breaking", str(present), "--against", str(_ACCEPTED), *_RULES))
        )
        if passed and is_accepting:
            shutil.copyfile(present, _ACCEPTED)
    print(f"buf: {'passed' if passed else 'failed'}")
    return 0 if passed else 1


def _buf(npx: str, *arguments: str) -> bool:
    return subprocess.run((npx, *_BUF, *arguments), cwd=_PROTO, check=False).returncode == 0  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
