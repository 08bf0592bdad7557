"""The scene is made once: most of its cost is that of the undisturbed run."""

from __future__ import annotations

import pytest

from tests.crash.scene import Scene


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene.make(tmp_path_factory.mktemp("scene"))
