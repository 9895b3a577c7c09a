"""translate.py over checkpoints, as its command calls it: formats, searches, ensembles, scores."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headloom import run
from headloom.config.schema_decoding import (
    BeamConfig,
    CandidateKind,
    GreedyConfig,
    MbrConfig,
    SampleConfig,
    ScoreConfig,
)
from headloom.config.schema_pretraining import EmbeddingConfig
from headloom.config.schema_training import Device, Precision
from headloom.config.schema_use import EvaluateConfig, LineFormat, OnBadLine, TranslateConfig
from headloom.errors import ConfigError, DataError
from headloom.work import families

FLOAT32 = {"device": Device.cpu, "precision": Precision.float32}
SHORT = {"max_length": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("translate")


@pytest.fixture(scope="module")
def checkpoints(make_config, folder) -> list[Path]:
    """Two of one tokenizer, from two seeds."""
    for seed in (1, 2):
        config = make_config(folder / "data", trainer={"max_steps": 6, "precision": Precision.float32}, seed=seed)
        run.train(config, folder / f"run{seed}")
    return [folder / f"run{seed}" / "checkpoints" / "last.pt" for seed in (1, 2)]


def translate(checkpoint: Path, content: bytes, folder: Path, **options: Any) -> list[str]:
    source, target = folder / "in.txt", folder / "out.txt"
    source.write_bytes(content)
    run.translate(TranslateConfig(checkpoint=checkpoint, input=source, output=target, **FLOAT32, **options))
    lines = target.read_bytes().decode().split("\n")
    assert lines.pop() == ""
    assert len(lines) == content.count(b"\n") + (not content.endswith(b"\n") and len(content) > 0)
    return lines


def replies(checkpoint: Path, requests: list[dict[str, Any]], folder: Path, **options: Any) -> list[dict[str, Any]]:
    content = "".join(json.dumps(request) + "\n" for request in requests).encode()
    return [json.loads(line) for line in translate(checkpoint, content, folder, format=LineFormat.jsonl, **options)]


EVERY_SEARCH = [
    GreedyConfig(**SHORT, repetition_penalty=1.2),
    BeamConfig(**SHORT, beam_size=3, num_best=2, coverage_penalty=0.2),
    SampleConfig(**SHORT, num_best=3, top_p=0.9),
    MbrConfig(**SHORT, num_candidates=4),
    MbrConfig(**SHORT, num_candidates=4, num_best=2, candidates=CandidateKind.beam),
]


@pytest.mark.parametrize("decoding", EVERY_SEARCH, ids=lambda config: config.kind.name)
def test_every_search_gives_a_line_for_each_line(checkpoints, tmp_path, decoding):
    """B04, B71, B76: order and neighbours change nothing."""
    lines = [b"a b c", b"", b"  ", "\u3000\t".encode(), b"b " * 40, b"\x00\x1b c", b"a b c"]
    found = translate(checkpoints[0], b"\n".join(lines), tmp_path, decoding=decoding)
    assert found[1:4] == ["", "", ""]
    assert found[0] == found[6]
    assert translate(checkpoints[0], b"\n".join(lines[::-1]), tmp_path, decoding=decoding) == found[::-1]
    alone = [line for part in lines for line in translate(checkpoints[0], part + b"\n", tmp_path, decoding=decoding)]
    assert alone == found


def test_json_lines_hold_scores_and_all_outputs(checkpoints, tmp_path):
    decoding = BeamConfig(**SHORT, beam_size=4, num_best=3, length_penalty=0.0)
    found, short, blank = replies(
        checkpoints[0], [{"source": "a b c", "id": 1}, {"source": "c"}, {"source": ""}], tmp_path, decoding=decoding
    )
    assert found["id"] == 1
    assert len({best["translation"] for best in found["n_best"]}) == 3
    for reply in (found, short):
        assert {name: reply[name] for name in reply["n_best"][0]} == reply["n_best"][0]
        assert all(best["log_probability"] == best["score"] <= 0 for best in reply["n_best"])
    assert (blank["translation"], blank["score"], blank["log_probability"]) == ("", None, None)
    lines = translate(checkpoints[0], b"a b c\nc\n\n", tmp_path, decoding=decoding)
    assert lines == ["\t".join(best["translation"] for best in reply["n_best"]) for reply in (found, short, blank)]


def test_a_pair_gets_the_log_probability_of_its_target_and_those_of_its_tokens(checkpoints, tmp_path):
    [line, blank] = translate(checkpoints[0], b"a b\tb a\n\t\n", tmp_path, decoding=ScoreConfig())
    total, tokens = line.split("\t")
    assert float(total) == pytest.approx(sum(map(float, tokens.split(" "))), abs=1e-4)
    assert len(blank.split("\t")[1].split(" ")) == 1  # the eos
    [asked] = replies(checkpoints[0], [{"source": "a b", "target": "b a"}], tmp_path, decoding=ScoreConfig())
    assert asked["tokens"][-1]["piece"] == "</s>"
    assert [f"{token['log_probability']:.6f}" for token in asked["tokens"]] == tokens.split(" ")


def test_a_pair_without_a_tab_is_named(checkpoints, tmp_path):
    with pytest.raises(DataError, match="line 2 has 1 columns where decoding=score needs 2"):
        translate(checkpoints[0], b"a\tb\na b\n", tmp_path, decoding=ScoreConfig())
    options = {"decoding": ScoreConfig(), "on_bad_line": OnBadLine.skip}
    assert translate(checkpoints[0], b"a\tb\na b\n\t\n", tmp_path, **options)[1] == ""


def test_a_wish_that_is_null_is_none(checkpoints, tmp_path):
    """As a table with empty cells is written."""
    wishes = dict.fromkeys(["prefix", "required", "forbidden", "seed"])
    requests = [{"source": "a b", **wishes}, {"source": "a b"}]
    with_null, plain = replies(checkpoints[0], requests, tmp_path, decoding=BeamConfig(**SHORT))
    assert with_null == {**plain, **wishes}
    with pytest.raises(DataError, match="line 1 has no text in field 'source'"):
        replies(checkpoints[0], [{"source": None}], tmp_path, decoding=BeamConfig(**SHORT))


def test_a_line_brings_its_own_wishes(checkpoints, tmp_path):
    beam = BeamConfig(**SHORT, beam_size=6)
    requests = [
        {"source": "a b c", "prefix": "c d"},
        {"source": "a b c", "required": ["d d"]},
        {"source": "a b c", "forbidden": ["a", "b"]},
        {"source": "a b c"},
    ]
    prefixed, required, forbidden, plain = replies(checkpoints[0], requests, tmp_path, decoding=beam)
    assert prefixed["translation"].startswith("c d")
    assert "d d" in required["translation"]
    assert not {"a", "b"} & set(forbidden["translation"])
    assert len({reply["translation"] for reply in (prefixed, required, plain)}) == 3
    assert "alignment" not in plain
    with pytest.raises(DataError, match="line 1 has a field 'required', which needs decoding=beam"):
        replies(checkpoints[0], requests[1:2], tmp_path, decoding=GreedyConfig())


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"required": ["a", "d €"]}, "has 'd €' in field 'required', of which the vocabulary cannot spell '€'"),
        ({"prefix": "c€ d"}, "has 'c€ d' in field 'prefix', of which the vocabulary cannot spell '€'"),
        ({"required": [""]}, "has '' in field 'required', which is blank"),
        ({"forbidden": ["a", " "]}, "has ' ' in field 'forbidden', which is blank"),
        ({"required": ["a b"], "forbidden": ["b"]}, "requires 'a b', which holds 'b', and that is forbidden"),
    ],
)
def test_a_wish_that_no_output_can_hold_makes_a_bad_line(checkpoints, tmp_path, wish, words):
    requests = [{"source": "a b c"}, {"source": "a b c", **wish}]
    options = {"decoding": BeamConfig(**SHORT, beam_size=3)}
    with pytest.raises(DataError, match=f"line 2 {words}"):
        replies(checkpoints[0], requests, tmp_path, **options)
    plain, bad = replies(checkpoints[0], requests, tmp_path, **options, on_bad_line=OnBadLine.skip)
    assert plain["translation"]
    assert bad["error"].endswith(words)


def test_a_phrase_that_cannot_be_spelled_may_be_forbidden(checkpoints, tmp_path):
    requests = [{"source": "a b c", "forbidden": ["€"]}, {"source": "a b c"}]
    forbidden, plain = replies(checkpoints[0], requests, tmp_path, decoding=GreedyConfig(**SHORT))
    assert forbidden["translation"] == plain["translation"]


@pytest.mark.parametrize(
    ("option", "phrase", "words"),
    [
        ("required", "d €", r"decoding\.required holds 'd €', of which the vocabulary cannot spell '€': remove it"),
        ("required", " ", r"decoding\.required holds ' ', which is blank: remove it"),
        ("forbidden", " ", r"decoding\.forbidden holds ' ', which is blank: remove it"),
        ("required", "d c", r"decoding\.required holds 'd c', of which decoding\.forbidden keeps out 'c': remove one"),
    ],
)
def test_an_option_that_no_output_can_meet_is_refused(checkpoints, tmp_path, option, phrase, words):
    with pytest.raises(ConfigError, match=words):
        translate(checkpoints[0], b"a\n", tmp_path, decoding=BeamConfig(**{"forbidden": ["c"], option: ["a", phrase]}))


def test_a_phrase_is_kept_out_though_it_is_a_part_of_a_token(checkpoints, tmp_path):
    """Every beginning of every word that is written without it, in any search."""
    for decoding in EVERY_SEARCH[:3]:
        [plain] = replies(checkpoints[0], [{"source": "a b c d"}], tmp_path, decoding=decoding)
        words = set(plain["translation"].split())
        phrases = sorted({word[:size] for word in words for size in range(1, len(word) + 1)})
        requests = [{"source": "a b c d", "forbidden": [phrase]} for phrase in phrases]
        for phrase, reply in zip(phrases, replies(checkpoints[0], requests, tmp_path, decoding=decoding), strict=True):
            assert f" {phrase}" not in f" {reply['translation']}"


def test_a_prefix_that_is_forbidden_is_a_bad_line(checkpoints, tmp_path):
    for own, decoding in (["c d"], GreedyConfig(**SHORT)), ([], GreedyConfig(**SHORT, forbidden=["c d"])):
        requests = [{"source": "a", "prefix": "a c d", "forbidden": own}]
        with pytest.raises(
            DataError, match="line 1 has 'a c d' in field 'prefix', which holds 'c d', and that is forb"
        ):
            replies(checkpoints[0], requests, tmp_path, decoding=decoding)


def test_an_empty_source_keeps_its_prefix(checkpoints, tmp_path):
    requests = [{"source": " ", "prefix": "c d"}, {"source": ""}]
    prefixed, blank = replies(checkpoints[0], requests, tmp_path, decoding=GreedyConfig())
    assert (prefixed["translation"], blank["translation"]) == ("c d", "")


def test_wishes_that_no_output_meets_are_said_in_a_line_of_their_own(checkpoints, tmp_path, caplog):
    requests = [{"source": "a b", "required": ["a a"]}, {"source": "a b"}]
    decoding = BeamConfig(**SHORT, beam_size=3, no_repeat_ngram=1)
    unmet, plain = replies(checkpoints[0], requests, tmp_path, decoding=decoding)
    assert (unmet["translation"], unmet["score"]) == ("", None)
    assert unmet["error"].startswith("none was found that holds what is required")
    assert plain["score"] is not None
    assert "error" not in plain
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("1 of 2 lines have no translation: none was found that holds what is required")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decoding": GreedyConfig()}, "decoding=greedy has no effect with a checkpoint of task=embedding"),
        (
            {"decoding": BeamConfig(beam_size=3)},
            "decoding.beam_size=3 has no effect with a checkpoint of task=embedding",
        ),
    ],
)
def test_a_search_is_refused_where_nothing_is_written(options, words):
    trained = SimpleNamespace(config=SimpleNamespace(task=EmbeddingConfig()))
    config = TranslateConfig(checkpoint=Path("none.pt"), **options)
    with pytest.raises(ConfigError, match=words):
        families.predictor(trained, config, [])


def test_a_seed_of_its_own_changes_what_is_drawn_for_a_line(checkpoints, tmp_path):
    decoding = SampleConfig(**SHORT)
    requests = [
        {"source": "a b c"},
        {"source": "a b c", "seed": 1},
        {"source": "a b c", "seed": 2},
        {"source": "a b c"},
    ]
    texts = [reply["translation"] for reply in replies(checkpoints[0], requests, tmp_path, decoding=decoding)]
    assert texts[0] == texts[3]
    assert len(set(texts)) == 3
    with pytest.raises(DataError, match="line 2 has a field 'seed', which needs decoding=sample or mbr"):
        replies(checkpoints[0], requests, tmp_path, decoding=GreedyConfig())


def test_alignments_name_words_of_both_sides(checkpoints, tmp_path):
    options = {"decoding": GreedyConfig(**SHORT), "alignments": True}
    found, blank = replies(checkpoints[0], [{"source": "a b c d"}, {"source": ""}], tmp_path, **options)
    num_words = len(found["translation"].split())
    assert [target for _, target in found["alignment"]] == list(range(num_words))
    assert all(0 <= source < 4 for source, _ in found["alignment"])
    assert blank["alignment"] == []


def test_an_ensemble_is_between_its_members(checkpoints, tmp_path):
    pairs = b"a b\tb a\nc\tc\n"

    def totals(checkpoint: Path, *ensemble: Path) -> list[float]:
        options = {"decoding": ScoreConfig(), "ensemble": list(ensemble)}
        return [float(line.split("\t")[0]) for line in translate(checkpoint, pairs, tmp_path, **options)]

    first, second = (totals(checkpoint) for checkpoint in checkpoints)
    both = totals(*checkpoints)
    assert all(min(ends) <= mean <= max(ends) for *ends, mean in zip(first, second, both, strict=True))
    assert both == pytest.approx(totals(*checkpoints[::-1]), abs=1e-5)
    assert first == pytest.approx(totals(checkpoints[0], checkpoints[0]), abs=1e-5)
    options = {"decoding": BeamConfig(**SHORT, beam_size=2, coverage_penalty=0.1), "ensemble": checkpoints[1:]}
    assert len(translate(checkpoints[0], b"a b\n\nc\n", tmp_path, **options)) == 3


def test_an_ensemble_is_evaluated_as_it_translates(checkpoints, tmp_path):
    """B82; and it has no loss and no accuracy of tokens, since those of one member are not those of all."""
    options = {"decoding": BeamConfig(**SHORT, beam_size=2), "ensemble": checkpoints[1:]}
    config = EvaluateConfig(checkpoint=checkpoints[0], output=tmp_path, **FLOAT32, **options)
    results = run.evaluate(config)
    source = (tmp_path / "source.txt").read_bytes()
    assert (
        translate(checkpoints[0], source, tmp_path, **options) == (tmp_path / "hypotheses.txt").read_text().splitlines()
    )
    assert results["ensemble"] == [str(checkpoints[1])]
    assert not {"loss", "perplexity", "accuracy"} & set(results)
    assert "loss" not in results["by_source_length"][0]
    with pytest.raises(ConfigError, match="ensemble and compare do not go together"):
        EvaluateConfig(checkpoint=checkpoints[0], compare=checkpoints[1:], **options)


def test_members_of_an_ensemble_have_one_tokenizer(checkpoints, make_config, folder, tmp_path):
    other = make_config(folder / "data", data={"num_symbols": 4}, trainer={"max_steps": 1})
    run.train(other, tmp_path / "other")
    with pytest.raises(ConfigError, match="another tokenizer"):
        translate(
            checkpoints[0],
            b"a\n",
            tmp_path,
            decoding=GreedyConfig(),
            ensemble=[tmp_path / "other" / "checkpoints" / "last.pt"],
        )


def test_translating_loads_no_more_than_it_needs(checkpoints, tmp_path):
    """A translation starts fast: torch is two of its three seconds, and these would be another."""
    (tmp_path / "in.txt").write_bytes(b"a b\n")
    paths = f"checkpoint=Path({str(checkpoints[0])!r}), input=Path({str(tmp_path / 'in.txt')!r})"
    heavy = ("matplotlib", "sacrebleu", "tensorboard", "torch._dynamo", "torch.distributed.fsdp", "scipy", "PIL")
    program = f"""
import sys
from pathlib import Path
from headloom import run
from headloom.config.schema_decoding import GreedyConfig
from headloom.config.schema_use import TranslateConfig
run.translate(TranslateConfig({paths}, decoding=GreedyConfig()))
sys.stderr.write(repr([name for name in {heavy} if name in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert done.stderr == "[]"
