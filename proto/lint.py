"""Lint the contract with buf and reject breaking changes.

    python proto/lint.py            lint, and compare with the accepted contract (`contract.binpb`)
    python proto/lint.py --accept   the same; if it passes, accept the present contract

npm installs buf with its binary. Without npm, the check is skipped with a message, or fails if the environment variable
`CI` is set.
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
# The rules of buf.yaml, because an image has no configuration.
_RULES = ("--config", '{"version": "v2", "breaking": {"use": ["FILE"]}}')
_BUF = ("--yes", "--ignore-scripts", "@bufbuild/buf@1.75.0")


def main() -> int:
    """Run the checks; return the exit code: 0 if they passed or were skipped."""
    parser = argparse.ArgumentParser(description="Lint the contract and reject breaking changes.")
    parser.add_argument("--accept", action="store_true", help="if it passes, accept the present contract")
    is_accepting = parser.parse_args().accept
    npx = shutil.which("npx")
    if npx is None:
        print("buf: skipped, npm is not installed", file=sys.stderr)
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
