"""What is installed is what is declared, and what the documents tell to type exists."""

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from headloom.config import overrides, schema

ROOT = Path(__file__).parent.parent
DOCUMENTS = ["README.md", "demo.sh", "CONTRIBUTING.md", "outputs/README.md", "data/README.md"]


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def lock() -> list[str]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").split("\n")
    return [line for line in lines if line and not line.startswith("#")]


def test_the_lock_pins_exact_public_versions():
    """No local version such as +cpu and no index: the file installs wherever the packages are."""
    assert [line for line in lock() if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9a-z.]+", line)] == []


def test_the_lock_holds_every_declared_package_in_its_range():
    pinned = {canonicalize_name(name): version for name, version in (line.split("==") for line in lock())}
    declared = [Requirement(text) for text in [*project()["dependencies"], *project()["optional-dependencies"]["dev"]]]
    assert [str(need) for need in declared if pinned[canonicalize_name(need.name)] not in need.specifier] == []


def test_a_torch_that_runs_a_checkpoints_code_is_refused():
    """B111: CVE-2026-24747."""
    (torch,) = [need for need in map(Requirement, project()["dependencies"]) if need.name == "torch"]
    assert "2.9.1" not in torch.specifier
    assert "2.10.0" in torch.specifier


def documented_commands() -> list[tuple[str, str]]:
    """(`train`, its arguments) for every such command in the documents."""
    found = []
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8").replace("\\\n", " ")
        found += re.findall(r"(?:python|\"\$python\"|\$python) (train|evaluate|translate)\.py ?([^\n`|<)#]*)", text)
    assert len(found) > 8
    return found


@pytest.mark.parametrize(("name", "arguments"), documented_commands())
def test_a_documented_command_names_options_that_exist(name, arguments):
    stand_ins = {"$checkpoint": "best.pt", "$run": "outputs/demo", "$trial": "outputs/trial", "$half": "2"}
    values = arguments
    for variable, value in stand_ins.items():
        values = values.replace(variable, value)
    values = re.sub(r'"\$\w+"', "7", values)  # the other variables are whole numbers
    words = shlex.split(values)
    if {"--help", "--cfg"} & set(words):
        return
    schema.register()
    checked = overrides.check(
        [word for word in words if word != "-m"],
        conf=ROOT / "conf",
        name=name,
        base=ROOT,
        multirun="-m" in words,
        only_show=True,
    )
    assert checked.is_sweep == ("-m" in words)


def test_the_documented_targets_are_the_makefiles():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*##", makefile, flags=re.MULTILINE))
    assert {"help", "install", "demo", "test", "test-slow", "check", "bench", "dashboard"} <= targets
    texts = [(ROOT / document).read_text(encoding="utf-8") for document in DOCUMENTS]
    mentioned = set(re.findall(r"(?:^|`|\| )make ([a-z-]+)", "\n".join(texts), flags=re.MULTILINE))
    assert {"demo", "test", "dashboard"} <= mentioned <= targets


def test_links_in_the_documents_lead_somewhere():
    for document in DOCUMENTS:
        path = ROOT / document
        for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).exists(), f"{document}: {link}"


def test_a_demo_whose_trial_fails_ends_there_and_leaves_no_number_of_updates(tmp_path):
    """The next one would take it: with an empty trainer.max_steps it was refused, until somebody removed the file."""
    (tmp_path / "demo.sh").write_bytes((ROOT / "demo.sh").read_bytes())
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "asked: $*" >&2\nexit 3\n', encoding="utf-8")
    python.chmod(0o755)
    (tmp_path / "trials").mkdir()
    environment = os.environ | {"PYTHON": str(python), "TMPDIR": str(tmp_path / "trials")}
    done = subprocess.run(["bash", tmp_path / "demo.sh"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.count("asked: ") == 1
    assert not (tmp_path / "outputs/demo/max-steps").exists()
    assert not list((tmp_path / "trials").iterdir())
