"""Where corpora lie that are too large, or not free enough, for the repository."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder named by HEADLOOM_SHARED_DATA, or shared/data beside the repository; skips where there is none."""
    default = Path(__file__).parents[3] / "shared" / "data"
    folder = Path(os.environ.get("HEADLOOM_SHARED_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no shared data: {folder} is not there; name its folder with HEADLOOM_SHARED_DATA")
    return folder
