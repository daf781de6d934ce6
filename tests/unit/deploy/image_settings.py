"""Settings that the container image contains."""

import re
from pathlib import Path
from typing import Final

DOCKERFILE: Final = (Path(__file__).resolve().parents[3] / "Dockerfile").read_text(encoding="utf-8")


def image_environment() -> dict[str, str]:
    """Return the variables of the server in the Dockerfile."""
    return dict(re.findall(r"^    (DRAGOMAN_\w+)=(\S+)", DOCKERFILE, re.MULTILINE))
