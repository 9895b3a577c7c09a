"""Rules of the house that a reader of one file cannot see broken: floors, and calls that have a trap."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headloom"
MODULES = sorted(SOURCE.rglob("*.py"))
COMMANDS = [ROOT / "train.py", ROOT / "evaluate.py", ROOT / "translate.py"]
FLOORS = [
    {"nn", "metrics", "errors"},
    {"models", "data"},
    {"decoding"},
    {"tasks"},
    {"training"},
    {"config", "insight"},
    {"build", "build_model"},
    {"run", "training_run"},
]
FLOOR = {part: floor for floor, parts in enumerate(FLOORS) for part in parts}


def part_of(module: Path) -> str:
    return module.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(module: Path) -> Iterator[str]:
    """Every module that `module` imports anywhere, in full: `headloom.nn.loss`, `torch`."""
    for node in ast.walk(ast.parse(module.read_bytes())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(name), names=names, level=0):
                yield from (f"headloom.{alias.name}" for alias in names) if name == "headloom" else (name,)
            case ast.ImportFrom(level=level) if level > 0:
                pytest.fail(f"{module}:{node.lineno}: a relative import hides its floor; write it in full")


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(SOURCE)))
def test_a_module_imports_from_lower_floors_only(module):
    own = part_of(module)
    if own == "__init__":
        assert list(imported(module)) == []
        return
    for name in imported(module):
        if name.startswith("headloom."):
            other = name.split(".")[1]
            same_room = FLOOR[other] == FLOOR[own] >= FLOOR["build"]  # the top floors are one room each, of a few files
            assert other in (own, "errors") or FLOOR[other] < FLOOR[own] or same_room


def test_hydra_and_omegaconf_are_known_to_config_and_the_commands_only():
    def imports_hydra(module: Path) -> bool:
        return any(name.split(".")[0] in ("hydra", "omegaconf") for name in imported(module))

    assert {part_of(module) for module in MODULES if imports_hydra(module)} == {"config"}


def test_a_command_is_short():
    """A command holds nothing that a test could not reach through headloom.run."""
    assert all(len(command.read_bytes().split(b"\n")) <= 41 for command in COMMANDS)


def calls(module: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(module.read_bytes())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


FORBIDDEN = {
    "splitlines": r"cuts at ten other characters than \n (B01)",
    "add_hparams": "makes a TensorBoard run of its own (B96)",
    "add_scalars": "makes a TensorBoard run a curve, never purged (B94)",
}


@pytest.mark.parametrize("module", [*MODULES, *COMMANDS], ids=lambda module: module.name)
def test_calls_with_a_trap_are_not_made(module):
    for function, call in calls(module):
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert function.rsplit(".")[-1] not in FORBIDDEN, f"{module}:{call.lineno}"
        assert function not in ("eval", "exec", "codecs.open", "pickle.load", "pickle.loads"), f"{module}:{call.lineno}"
        if function == "torch.load":
            assert given.get("weights_only") == "True", f"{module}:{call.lineno}: runs a stranger's code (B111)"
            assert "map_location" in given, f"{module}:{call.lineno}: needs the device it was saved on (B63)"
        if function in ("np.load", "numpy.load"):
            assert given.get("allow_pickle", "False") == "False", f"{module}:{call.lineno} (B111)"
        if function == "zip":
            assert "strict" in given, f"{module}:{call.lineno}: drops what is longer (B06)"
        if function == "tqdm":
            assert "disable" in given, f"{module}:{call.lineno}: fills log files (B97)"
