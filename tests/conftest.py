"""What every test stands on: eight CPU devices, strict JAX, and files that hold what is expected."""

from __future__ import annotations

import os

# Read by JAX when it starts, so before anything imports it. JAX_PLATFORMS=cuda tests on a GPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

from collections.abc import Callable
from pathlib import Path

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_numpy_rank_promotion", "raise")

# No test depends on a clock or on luck: a run finds what every other run finds.
settings.register_profile("treeviz", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("treeviz")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden; read its diff like code")
    parser.addoption("--shots", default="", metavar="FOLDER", help="keep the screenshots of the browser tests here")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("mlp.html", text)` compares `text` with the file of that name in `tests/golden`."""
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str):
        file = GOLDEN / name
        if update:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
        assert file.exists(), f"tests/golden/{name} is not there: pytest --update-golden writes it"
        assert text == file.read_text(encoding="utf-8")

    return compare


@pytest.fixture(scope="session")
def shots(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for screenshots: the one given with `--shots`, else one that goes with the test run."""
    folder = request.config.getoption("--shots")
    path = Path(folder).absolute() if folder else tmp_path_factory.mktemp("shots")
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture
def seen():
    """What `watch` tells of is kept here."""
    from watched import Recorder  # JAX is set up by now

    return Recorder()


@pytest.fixture
def mlp():
    """The parameters of a small multilayer perceptron."""
    from watched import init_mlp_params

    return init_mlp_params([1, 8, 8, 1])


@pytest.fixture(scope="session", autouse=True)
def patience():
    """What an explorer answers is whole, however slow the machine is."""
    from treeviz.analysis import detail

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detail, "MOST_SECONDS", 600.0)
        yield
