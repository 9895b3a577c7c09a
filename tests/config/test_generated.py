"""How the commands that renew a document answer; that the documents are up to date is tested beside their makers."""

import pytest

from headloom import combinations
from headloom.config import options
from headloom.config.generated import renew
from headloom.export import table


@pytest.mark.parametrize("command", [options, combinations, table], ids=lambda command: command.__name__)
def test_help_says_what_the_command_does_and_an_unknown_argument_is_refused(command, capsys):
    for arguments, status in ((["--help"], 0), (["--chek"], 2), (["x"], 2)):
        with pytest.raises(SystemExit) as ended:
            command.main(arguments)
        assert ended.value.code == status
        said = capsys.readouterr()
        assert f"usage: python -m {command.__name__} [-h] [--check]" in (said.err if status else said.out)


def test_a_document_is_compared_or_written_from_the_one_that_is_there(tmp_path, capsys):
    document = tmp_path / "docs" / "d.md"
    document.parent.mkdir()

    def call(*arguments: str) -> int:
        return renew(arguments, module="m", document=document, render=lambda found: found or "new\n")

    assert call("--check") == 1
    assert capsys.readouterr().err == "docs/d.md is stale: run python -m m\n"
    assert not document.exists()
    assert call() == 0
    assert document.read_text(encoding="utf-8") == "new\n"
    document.write_text("mine\n", encoding="utf-8")
    assert call("--check") == call() == 0
    assert document.read_text(encoding="utf-8") == "mine\n"


def test_an_installed_package_writes_no_document(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        renew([], module="m", document=tmp_path / "docs" / "d.md", render=lambda _: "text")
    assert ended.value.code == 2
    assert "docs does not exist: run it in a checkout" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
