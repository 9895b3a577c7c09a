"""Rules of the house that a reader of one file cannot see broken: short commands, and calls that have a trap.

The floors are in test_floors.py.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headloom"
MODULES = sorted(SOURCE.rglob("*.py"))
COMMANDS = [ROOT / "train.py", ROOT / "evaluate.py", ROOT / "translate.py"]


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
