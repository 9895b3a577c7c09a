"""B84, B85, B92: a wrong command line is refused in one line that names the option and what to do."""

from copy import deepcopy
from pathlib import Path

import hydra
import pytest
from omegaconf import DictConfig

from headloom.config import overrides, schema
from headloom.config.overrides import Checked, check
from headloom.config.schema_labelled import LABELLED_DATA
from headloom.errors import ConfigError

COMPOSED: dict[tuple[str, ...], DictConfig] = {}
CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra takes a fifth of a second to compose; most tests here start from the same choice of groups."""
    schema.register()

    def compose(name: str, lines: list[str], *, return_hydra_config: bool) -> DictConfig:
        key = (name, *lines)
        if key not in COMPOSED or any("searchpath" in line for line in lines):
            COMPOSED[key] = hydra.compose(name, lines, return_hydra_config=return_hydra_config)
        return deepcopy(COMPOSED[key])

    monkeypatch.setattr(overrides, "compose", compose)


def run_check(line: str, name: str = "train", **kwargs: object) -> Checked:
    return check(line.split(), conf=CONF, name=name, base=Path.cwd(), **kwargs)  # type: ignore[arg-type]


def refusal(line: str, name: str = "train", **kwargs: object) -> str:
    with pytest.raises(ConfigError) as error:
        run_check(line, name, **kwargs)
    message = str(error.value)
    assert "\n" not in message
    return message


NOT_AN_OPTION = "'{}' is not an option. Did you mean '{}'?".format


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_a_misspelt_option_is_refused_however_it_is_set(plus: str) -> None:
    """B84: Hydra itself takes `+typo=1` and `++typo=1`."""
    assert refusal(f"{plus}optimizer.lrr=1") == NOT_AN_OPTION("optimizer.lrr", "optimizer.lr")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("stpes=5", "'stpes' is not an option. Did you mean 'schedule.warmup_steps' or 'trainer.max_steps'"),
        ("lr=1", NOT_AN_OPTION("lr", "optimizer.lr")),
        ("++optim.lrr=1", NOT_AN_OPTION("optim.lrr", "optimizer.lr")),
        ("modle=small", NOT_AN_OPTION("modle", "model")),
        ("model.dimm=8", "'model.dimm' is not an option. model has the options kind, d_model, "),
        ("hydra.run.dirr=x", NOT_AN_OPTION("hydra.run.dirr", "hydra.run.dir")),
        ("+hydra.run.dirr=x", NOT_AN_OPTION("hydra.run.dirr", "hydra.run.dir")),
        ("hydra/launchr=basic", NOT_AN_OPTION("hydra/launchr", "hydra/launcher")),
        (
            "position.share=0.5",
            "'position.share' is not an option here, only with position=rope: choose that, or remove it",
        ),
        ("+seed=3", "'+seed=3' would add what is there: write seed=3"),
    ],
)
def test_what_names_no_option_is_refused_with_the_one_that_was_meant(line: str, message: str) -> None:
    """B84."""
    assert refusal(line).startswith(message)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("model=bsae", "'model=bsae' is not a choice: model is one of "),
        ("model=null", "'model=null' is not a choice: model is one of "),
        ("experiment=null", "'experiment=null' is how it is when nothing is said: remove it"),
        (
            "size=tinny",
            "'size=tinny' is not a choice: size is one of base, big, mini, small, tiny. Did you mean 'size=tiny'?",
        ),
        ("experiment=copi", "Did you mean 'experiment=copy'?"),
        ("hydra/launcher=basicc", "'hydra/launcher=basicc' is not a choice: hydra/launcher is one of basic."),
        ("position@foo=rope", "'position@foo=rope': a group stays where it is; write position=rope"),
    ],
)
def test_a_wrong_choice_is_answered_with_the_right_ones(line: str, message: str) -> None:
    """B84."""
    assert message in refusal(line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "~optimizer.lr",
            "'~optimizer.lr': nothing can be removed, every option has a value; set optimizer.lr=... instead",
        ),
        ("~model", "'~model': nothing can be removed"),
        ("~hydra.run.dir", "'~hydra.run.dir': nothing can be removed"),
        ("seed", "'seed' is not an override: write option=value"),
        ("data.path=a/epoch=3.gz", "quote the value, as in 'data.path=\"a/epoch=3.gz\"'"),
        ("data.path=日本", "quote the value, as in 'data.path=\"日本\"'"),
        ("decoding.forbidden=[a,日本]", 'quote the value, as in \'decoding.forbidden=["a","日本"]\''),
        ('decoding.forbidden=[日本,"im,Ha"]', 'as in \'decoding.forbidden=["日本","im,Ha"]\''),
    ],
)
def test_what_cannot_be_read_as_an_override_is_refused(line: str, message: str) -> None:
    """B84: `~key` would delete a needed option."""
    assert message in refusal(line)


@pytest.mark.parametrize(
    ("option", "takes"),
    [
        ("optimizer.lr=abc", "a number or null"),
        ("optimizer.lr=", "a number or null"),
        ("optimizer.lr=true", "a number or null"),
        ("trainer.max_steps=3.7", "a whole number"),
        ("trainer.max_steps=1e3", "a whole number"),
        ("trainer.max_steps=null", "a whole number"),
        ("norm.kind=rmss", "layer or rms. Did you mean 'norm.kind=rms'?"),
        ("model.bias=maybe", "true or false"),
        ("data.path=3", "a path or null"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_what_the_option_takes(option: str, takes: str) -> None:
    """B85."""
    assert refusal(option) == f"'{option}' is refused: it takes {takes}"


def test_a_number_may_be_written_with_an_exponent() -> None:
    """B85: what Hydra reads from the command line is a float."""
    (config,) = run_check("optimizer.lr=1e-4").configs
    assert config.optimizer.lr == 1e-4


def test_a_language_that_yaml_takes_for_a_truth_value_is_refused(tmp_path: Path) -> None:
    """B85: `target_language: no` in a YAML file is false; on the command line it is text."""
    presets = tmp_path / "experiment"
    presets.mkdir()
    (presets / "norwegian.yaml").write_text("# @package _global_\ndata:\n  target_language: no\n", encoding="utf-8")
    message = refusal("experiment=norwegian", presets=tmp_path)
    assert (
        message
        == "data.target_language=False: YAML takes an unquoted no, off or false for a truth value; quote the text"
    )
    (config,) = run_check("data.target_language=no").configs
    assert config.data.target_language == "no"


def test_a_mistake_in_a_preset_is_refused_with_its_file(tmp_path: Path) -> None:
    presets = tmp_path / "experiment"
    presets.mkdir()
    (presets / "bad.yaml").write_text("# @package _global_\nmodel:\n  d_modle: 3\n", encoding="utf-8")
    message = "In 'experiment/bad': 'model.d_modle' is not an option. Did you mean 'model.d_model'?"
    assert refusal("experiment=bad", presets=tmp_path) == message
    (presets / "bad.yaml").write_text("# @package _global_\ntokenizer:\n  dropout: 0.1\n", encoding="utf-8")
    message = "In 'experiment/bad': 'tokenizer.dropout' is an option only with tokenizer=bpe: choose that"
    assert refusal("experiment=bad tokenizer=unigram", presets=tmp_path) == message
    (presets / "bad.yaml").write_text("# @package _global_\nseed: x\n", encoding="utf-8")
    assert refusal("experiment=bad", presets=tmp_path).startswith("In 'experiment/bad': seed: Value 'x' of type 'str'")
    (presets / "worse.yaml").write_text("a: [\n", encoding="utf-8")
    assert "worse.yaml" in refusal("experiment=worse", presets=tmp_path)
    assert "is not a folder" in refusal("seed=1", presets=tmp_path / "none")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"defaults:\n  - override /model: lm\n", "mine.yaml needs '# @package _global_' as its first line"),
        (b"seed: 3\n", "mine.yaml needs '# @package _global_' as its first line"),
        (b"\xef\xbb\xbf# @package _global_\nseed: 3\n", "mine.yaml begins with a byte order mark"),
        (b"# @package _global_\n# caf\xe9\nseed: 3\n", "mine.yaml is not UTF-8"),
        (b"# @package _global_\ndefaults:\n  - mine\n", "a YAML file names itself among its defaults"),
        (
            b"# @package _global_\ndefaults:\n  - override /model: lmm\n",
            "'model: lmm' in a YAML file is not a choice: model is one of classifier, lm, seq2seq. Did you mean",
        ),
    ],
)
def test_a_preset_that_cannot_be_used_as_it_stands_is_told_what_it_needs(
    tmp_path: Path, content: bytes, message: str
) -> None:
    """B03, B14."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_bytes(content)
    assert message in refusal("experiment=mine", presets=tmp_path)


def test_a_preset_may_say_where_its_runs_are_written(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\nhydra:\n  run:\n    dir: outputs/mine\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text, encoding="utf-8")
    for lines, folder in ((["experiment=mine"], "outputs/mine"), (["experiment=mine", "hydra.run.dir=here"], "here")):
        checked = check(lines, conf=CONF, name="train", base=tmp_path, presets=tmp_path)
        assert checked.hydra.hydra.run.dir == folder


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "data=parallel",
            "data.source is missing with data=parallel, as is data.target: set data.source=... (training text",
        ),
        ("data=tsv", "data.path is missing with data=tsv: set data.path=... (training pairs, such as pairs.tsv.gz)"),
        ("optimizer.lr=${x}", "optimizer.lr: Interpolation key 'x' not found"),
        ("data.path=nofile", "does not exist: check the path"),
        ("data=tsv data.path=-", "data.path=- is a stream, which only translate.py reads and writes: name a file"),
        ("data.path=/", "data.path=/ is a folder: name a file"),
        ("resume=nowhere", "does not exist: give a checkpoint, a run's folder, auto or never"),
        ("data.target_language=", "data.target_language is empty"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_loaded(line: str, message: str) -> None:
    """B92, B117."""
    assert message in refusal(line)


@pytest.mark.parametrize("name", ["evaluate", "translate"])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "checkpoint is missing: set checkpoint=... (the checkpoint, such as outputs/RUN/checkpoints/best.pt"),
        ("checkpoint=none.pt", "does not exist"),
        ("checkpoint=-", "checkpoint=- is a stream, which only translate.py reads and writes: name a file"),
        ("checkpoint=/", "checkpoint=/ is a folder: name a file, such as /checkpoints/best.pt"),
        ("model.d_model=3", "what it sets comes from the checkpoint"),
        ("position.base=3", "'position.base' is not an option of {name}.py: what it sets comes from the checkpoint"),
        ("position.scaling=yarm", "it takes none, linear, ntk, dynamic_ntk or yarn or null"),
        ("position=rope", "position is a section of options; set position.scaling, position.factor"),
        ("norm.epsilon=1", "what it sets comes from the checkpoint"),
        ("attention.width=1", "what it sets comes from the checkpoint"),
        ("decoding.beam=3", "'decoding.beam' is not an option. Did you mean 'decoding.beam_size'?"),
        ("decoding=greedy decoding.required=[a]", "'decoding.required' is not an option here, only with decoding=beam"),
        ("decoding.seed=2", "only with decoding=sample or decoding=mbr: choose that, or remove it"),
    ],
)
def test_the_other_entry_points_refuse_as_early(name: str, line: str, message: str) -> None:
    """B92, B117."""
    assert message.replace("{name}", name) in refusal(line, name)


def test_evaluate_has_a_section_data_of_its_own() -> None:
    assert "data is a section of options; set data.split, data.source, data.target" in refusal("data=tsv", "evaluate")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("seed=1,x", "'seed=x' is refused: it takes a whole number (in the job seed=x)"),
        ("model.num_heads=4,7 seed=1,2", "(in the job model.num_heads=7 seed=1)"),
        (
            "position=rope,none position.share=0.1,0.2",
            "only with position=rope: choose that, or remove it (in the job position=none",
        ),
        ("position=rope,rop", "'position=rop' is not a choice"),
        ("hydra.run.dir=x", "hydra.run.dir has no effect in a sweep: set hydra.sweep.dir"),
    ],
)
def test_every_job_of_a_sweep_is_checked_before_the_first_starts(line: str, message: str) -> None:
    """B84."""
    assert message in refusal(line, multirun=True)


def test_a_sweep_is_every_combination_and_needs_its_flag() -> None:
    assert len(run_check("seed=1,2 optimizer.lr=choice(1e-3,1e-4)", multirun=True).configs) == 4
    assert refusal("seed=1,2") == "'seed=1,2' has several values: add -m to sweep, or quote the comma"


def test_an_interval_is_left_to_its_sweeper_and_its_name_is_checked() -> None:
    """B90: a plugin draws the values; each job checks its own."""
    assert run_check("optimizer.lr=interval(1e-4,1e-3)", multirun=True).is_sweep
    assert "Did you mean 'optimizer.lr'" in refusal("optimizer.lrr=interval(1e-4,1e-3)", multirun=True)


def test_a_secret_in_the_environment_is_not_taken_into_an_option() -> None:
    """B114: options are saved."""
    assert "reads the environment variable HF_TOKEN" in refusal("data.path=${oc.env:HF_TOKEN}")


def test_paths_are_absolute_from_where_the_user_stands(tmp_path: Path) -> None:
    """B87."""
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("x\n", encoding="utf-8")
    line = ["data=parallel", "data.source=a.en", "data.target=./a.de", "resume=a.en"]
    (config,) = check(line, conf=CONF, name="train", base=tmp_path).configs
    assert config.data.source == tmp_path / "a.en"
    assert config.data.target == tmp_path / "a.de"
    assert config.data.folder == tmp_path / "data"
    assert config.resume == str(tmp_path / "a.en")


LABELLED = set(LABELLED_DATA) - {"conll"}
RUNNING = {"alice", "text", "tiny_shakespeare"}
ENCODER_TASKS = ("classification", "regression", "tagging", "masked_language_modeling", "embedding")
MODELS = {"language_modeling": "lm"} | dict.fromkeys(ENCODER_TASKS, "classifier")
FITTING = {
    "language_modeling": RUNNING,
    "masked_language_modeling": RUNNING,
    "embedding": {"tsv"},
    "classification": LABELLED,
    "regression": LABELLED,
    "tagging": {"conll"},
}
"""Task, its model and the data it learns from; a task that is not here translates pairs."""


def every_choice() -> list[dict[str, str]]:
    """Every file of every group at least once, in as few configurations as that takes."""
    groups = {
        f.name: sorted(p.stem for p in f.glob("*.yaml")) for f in CONF.iterdir() if f.is_dir() and f.name != "hydra"
    }
    groups["decoding"].remove("score")  # for translate.py only
    recipes = ("experiment", "sweep")
    families = ("model", "task", "data")
    chosen = [
        {"model": MODELS.get(task, "seq2seq"), "task": task, "data": data}
        for task in groups["task"]
        for data in groups["data"]
        if data in FITTING.get(task, set(groups["data"]) - RUNNING - LABELLED - {"conll"})
    ]
    assert all({line[group] for line in chosen} == set(groups[group]) for group in families)
    rounds = max(len(choices) for choices in [chosen, *groups.values()])
    lines = [
        chosen[i % len(chosen)] | {g: c[i % len(c)] for g, c in groups.items() if g not in (*recipes, *families)}
        for i in range(rounds)
    ]
    for line in lines:
        if line["trainer"] == "fsdp":  # takes no optimizer that needs whole matrices
            line["trainer"] = "ddp"
    lines.append(lines[0] | {"trainer": "fsdp", "optimizer": "adamw"})
    return lines + [{group: choice} for group in recipes for choice in groups[group]]


@pytest.mark.parametrize("choices", every_choice(), ids=lambda c: ",".join(c.values()))
def test_every_yaml_file_composes(choices: dict[str, str], tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("x\n", encoding="utf-8")
    needed = {"parallel": ["data.source=a", "data.target=b"]} | {
        data: ["data.path=a"] for data in ("tsv", "jsonl", "labelled", "conll", "text")
    }
    of_files = ("chnsenticorp_masked", "sst2", "trec", "mrpc", "stsb", "wnut17", "simcse")
    needed_by_recipe = {recipe: ["data.path=a"] for recipe in of_files} | {"chnsenticorp_warm": ["warm_start=a"]}
    line = [f"{group}={choice}" for group, choice in choices.items()] + needed.get(choices.get("data", ""), [])
    line += needed_by_recipe.get(choices.get("experiment", ""), [])
    for config in check(line, conf=CONF, name="train", base=tmp_path).configs:
        for group, kinds in schema.CHOICES.items():
            if group in choices:
                assert type(getattr(config, group)) is kinds[choices[group]]
