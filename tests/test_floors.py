"""A module imports from lower floors only; torch is not loaded before the command line is checked."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "headloom"
ENTRY_POINTS = [ROOT / f"{name}.py" for name in ("train", "evaluate", "translate")]
FLOORS = {
    "bar": -1,
    "errors": -2,  # everything may raise what a user can cause
    "ranks": -1,  # everything may be shared among processes
    "nn": 0,
    "reference": 0,
    "metrics": 0,
    "models": 1,
    "data": 1,
    "decoding": 2,
    "tasks": 3,
    "training": 4,
    "config": 5,
    "insight": 5,
    "build": 6,
    "combinations": 7,
    "work": 7,
    "average": 7,
    "final_average": 7,
    "run_start": 7,
    "export": 8,
    "training_run": 8,
    "checks": 9,
    "resume_check": 9,
    "run": 10,
    "commands": 11,
}
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def part_of(path: Path) -> str:
    """The package directly under headloom, or the module there, that holds a file."""
    return floor_name(path.relative_to(SOURCE).parts[0].removesuffix(".py"))


def floor_name(part: str) -> str:
    """The part that a file belongs to: build.py and the build_*.py are one."""
    return "build" if part.startswith("build_") else part


def imports(path: Path) -> set[str]:
    """Dotted names of all that a file imports, at its top or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import; the house writes them out"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_from_lower_floors_only(path: Path) -> None:
    own = part_of(path)
    used = {floor_name(name.split(".")[1]) for name in imports(path) if name.startswith("headloom.")}
    higher = {name for name in used - {own} if FLOORS[name] >= FLOORS[own]}
    assert not higher, f"{own} stands on floor {FLOORS[own]} and imports {higher}"


@pytest.mark.parametrize("path", sorted((SOURCE / "reference").glob("*.py")), ids=lambda path: path.name)
def test_the_reference_knows_numpy_and_python_only(path: Path) -> None:
    """What checks our modules shares nothing with them."""
    roots = {name.split(".")[0] for name in imports(path) if not name.startswith("headloom.reference.")}
    assert roots <= {"numpy", *sys.stdlib_module_names}


def test_the_reference_is_a_lesson_and_stays_short() -> None:
    lines = [path.read_text(encoding="utf-8").count("\n") for path in (SOURCE / "reference").glob("*.py")]
    assert sum(lines) <= 700


@pytest.mark.parametrize("path", [*MODULES, *ENTRY_POINTS], ids=lambda path: path.name)
def test_hydra_is_known_to_config_and_the_entry_points_only(path: Path) -> None:
    if path in ENTRY_POINTS or part_of(path) == "config":
        return
    assert not {name for name in imports(path) if name.split(".")[0] in ("hydra", "omegaconf")}


@pytest.mark.parametrize("path", ENTRY_POINTS, ids=lambda path: path.name)
def test_an_entry_point_is_thin(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").split("\n")) <= 40


def test_checking_a_command_line_loads_no_torch() -> None:
    """B84: a wrong option is refused within two seconds."""
    heavy = ("torch", "numpy", "sentencepiece", "matplotlib", "tensorboard", "sacrebleu")
    code = f"import sys, headloom.commands; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
