"""One number everywhere, through the commands: a search that the training was given needs no repeating."""

import json
import logging
import sys

from headloom import commands, run
from headloom.config.schema_decoding import BeamConfig
from headloom.config.schema_training import Precision


def test_evaluate_and_translate_search_as_the_validations_did_unless_told(
    make_config, tmp_path, monkeypatch, capfd, caplog
):
    caplog.set_level(logging.INFO)
    search = BeamConfig(beam_size=2, min_length=9, max_length=12)
    trainer = {"max_steps": 5, "evaluate_every": None, "precision": Precision.float32}
    run.train(make_config(tmp_path / "data", trainer=trainer, decoding=search), tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (record,) = (record for record in records if "valid/bleu" in record)

    def outcome(name: str, *options: str) -> str:
        """What the command prints."""
        caplog.clear()
        checkpoint = f"checkpoint={tmp_path}/run/checkpoints/last.pt"
        monkeypatch.setattr(sys, "argv", [f"{name}.py", checkpoint, "precision=float32", *options])
        assert getattr(commands, name)() == 0
        return capfd.readouterr().out

    outcome("evaluate", "data.split=valid")
    folder = tmp_path / "run" / "evaluation" / "valid"
    found = json.loads((folder / "evaluation.json").read_text())
    assert (found["bleu"], found["chrf"]) == (record["valid/bleu"], record["valid/chrf"])
    assert "as in the training: decoding.max_length=12 decoding.min_length=9 decoding.beam_size=2" in caplog.messages

    hypotheses = (folder / "hypotheses.txt").read_text()
    source = f"input={folder}/source.txt"
    assert outcome("translate", source) == hypotheses
    short = outcome("translate", source, "decoding.min_length=0", "decoding.max_length=2")
    assert max(map(len, short.splitlines())) < max(map(len, hypotheses.splitlines()))
    outcome("translate", source, "decoding=greedy")
    assert not any("as in the training" in message for message in caplog.messages)
