import logging

import pytest

from headloom.config.resuming import check_resumed
from headloom.errors import CheckpointError

OLD = {
    "model": {"d_model": 16, "dropout": 0.1},
    "data": {"folder": "data", "max_length": 64},
    "optimizer": {"kind": "adam", "lr": None},
    "trainer": {"max_steps": 10, "max_tokens": 100},
    "seed": 1,
    "resume": "never",
    "warm_start": None,
}


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("model.d_model", 32, "model.d_model=32 (was 16)"),
        ("model.dropout", 0.3, "model.dropout=0.3 (was 0.1)"),
        ("data.max_length", 32, "data.max_length=32 (was 64)"),
        ("optimizer.kind", "adamw", "optimizer.kind=adamw (was adam)"),
        ("model.dropout", None, "model.dropout=null (was 0.1)"),
        ("model.dropout", True, "model.dropout=true (was 0.1)"),
        ("trainer.max_tokens", 200, "trainer.max_tokens=200 (was 100)"),
        ("seed", 2, "seed=2 (was 1)"),
    ],
)
def test_what_the_weights_or_the_place_in_the_data_rest_on_cannot_change(caplog, option, value, reason):
    """B64: with the old and the new value, and before anything is called taken."""
    with caplog.at_level(logging.INFO), pytest.raises(CheckpointError) as caught:
        check_resumed(OLD, changed("trainer.max_steps", 20, changed(option, value)))
    assert str(caught.value) == f"a resumed run cannot change {reason}: leave it, or start a new run"
    assert not caplog.messages


@pytest.mark.parametrize(
    ("option", "value"), [("optimizer.lr", 0.1), ("trainer.max_steps", 20), ("data.folder", "/other")]
)
def test_other_options_are_taken_and_named(caplog, option, value):
    """B64, B67: data may have moved."""
    with caplog.at_level(logging.INFO):
        check_resumed(OLD, changed("warm_start", "best.pt", changed("resume", "auto", changed(option, value))))
    section, name = option.split(".")
    assert caplog.messages == [f"resumed with another {option}={value} (was {OLD[section][name] or 'null'}): taken"]


def test_another_search_is_warned_of_where_scores_depend_on_it(caplog):
    """And no option is listed that one of the two searches does not have."""
    beam, greedy = {"kind": "beam", "beam_size": 3, "max_tokens": 9}, {"kind": "greedy", "max_tokens": 9}
    old = {**OLD, "task": {"kind": "translation", "headline": "bleu"}, "decoding": beam}
    check_resumed(old, changed("decoding", greedy, old))
    [warning] = caplog.messages
    assert warning.startswith(
        "the best validation so far was scored with another search (decoding.kind=greedy (was beam)): it and later"
    )
    caplog.clear()
    check_resumed(old, changed("decoding.max_tokens", 5, old))
    by_loss = {**old, "task": {"kind": "translation", "headline": "loss"}}
    check_resumed(by_loss, changed("decoding", greedy, by_loss))
    assert caplog.messages == []


def test_an_option_that_is_new_or_gone_is_a_change():
    with pytest.raises(CheckpointError, match=r"model\.depth=2 \(was null\)"):
        check_resumed(OLD, {**OLD, "model": {**OLD["model"], "depth": 2}})


def changed(option: str, value: object, config: dict = OLD) -> dict:
    section, dot, name = option.partition(".")
    return {**config, section: {**config[section], name: value} if dot else value}
