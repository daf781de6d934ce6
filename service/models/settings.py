"""The settings section of the models: where they are, and how the server follows what happens there."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class ModelSettings(BaseModel):
    """Where the models are, and when they are loaded and unloaded."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    directory: Path = Field(default=Path("deploy/models"))
    """Holds the bundles as NAME/VERSION/; all of them are loaded, unless NAME/serving.toml says which."""

    poll_interval_s: float = Field(default=5.0, ge=0, le=3600)
    """Seconds between two looks at the directory, for versions that have come or gone; 0: the server never looks."""

    settle_s: float = Field(default=10.0, ge=0, le=3600)
    """Seconds for which a bundle that does not fit its checksums must stay unchanged until it counts as broken, not as
    being copied."""

    unload_timeout_s: float = Field(default=300.0, ge=0, le=3600)
    """Seconds that the requests of a version get to finish when it is unloaded; what is left then is refused."""
