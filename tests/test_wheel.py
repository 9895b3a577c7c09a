"""The package installed as a wheel, which is built from the source distribution, away from the checkout."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ["LICENSE", "MANIFEST.in", "README.md", "conf", "pyproject.toml", "setup.py", "src"]
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, f'build_{sys.argv[1]}')(sys.argv[2])"


def build(kind: str, source: Path, target: Path) -> Path:
    """The file of the sdist or wheel of `source`."""
    command = [sys.executable, "-c", BUILD, kind, str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (found,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder for PYTHONPATH that holds what pip would install."""
    folder = tmp_path_factory.mktemp("wheel")
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, checkout / name)
    for unwanted in checkout.rglob("*.egg-info"):  # a list of files by an earlier version
        shutil.rmtree(unwanted)
    with tarfile.open(build("sdist", checkout, folder)) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    with zipfile.ZipFile(build("wheel", source, folder)) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def call(installed: Path, cwd: Path, name: str, *arguments: str) -> str:
    """What the console script prints."""
    code = (
        "import sys; from importlib.metadata import distribution;"
        f"(script,) = distribution('headloom').entry_points.select(group='console_scripts', name='{name}');"
        "sys.exit(script.load()())"
    )
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, check=True, capture_output=True, text=True).stdout


def test_a_wheel_holds_every_preset(installed):
    """B110."""
    held = {path.relative_to(installed / "headloom") for path in (installed / "headloom" / "conf").rglob("*.yaml")}
    assert held == {path.relative_to(ROOT) for path in (ROOT / "conf").rglob("*.yaml")}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("train", ["experiment=copy"]), ("evaluate", ["checkpoint=any.pt"]), ("translate", ["checkpoint=any.pt"])],
)
def test_an_installed_command_composes_what_the_checkout_does(installed, tmp_path, name, arguments):
    line = [sys.executable, ROOT / f"{name}.py", *arguments, "--cfg", "job"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    ours = subprocess.run(line, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout
    assert call(installed, tmp_path, f"headloom-{name}", *arguments, "--cfg", "job") == ours != ""
    assert call(installed, tmp_path, f"headloom-{name}", "--help").count("*") > 1  # the defaults of groups


def test_an_installed_command_writes_where_it_is_called(installed, tmp_path):
    options = ["size=tiny", "trainer=cpu", "trainer.max_steps=1", "data.num_train=20", "data.num_valid=2"]
    call(installed, tmp_path, "headloom-train", "experiment=copy", *options)
    assert len(list(tmp_path.glob("outputs/*/*/checkpoints/last.pt"))) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"data", "outputs"}
