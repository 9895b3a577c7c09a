"""What the works on running text have in common: the corpus, its tokenizer and its tokens."""

from collections.abc import Callable, Mapping
from typing import Any

from headloom import build_language
from headloom.config.schema import TrainConfig
from headloom.data.text_store import tokenize_text
from headloom.data.tokenizer import tokenizer_from_state
from headloom.data.tokenizer_base import Tokenizer
from headloom.work.warm_start import WarmStart


def saved_tokenizer(contents: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a checkpoint."""
    return tokenizer_from_state(contents["tokenizers"]["text"])


def chosen_tokenizer(
    config: TrainConfig,
    contents: Mapping[str, Any] | None,
    warm: WarmStart | None,
    trained: Callable[[], Tokenizer],
) -> Tokenizer:
    """That of the run that goes on, else that of the warm start, else one `trained` on the text."""
    if contents is not None:
        return saved_tokenizer(contents)
    if warm is not None:
        return warm.tokenizer(config.tokenizer)
    return trained()


class RunningTextWork:
    """The half of a `work.base.Work` that a model and a task are added to."""

    def __init__(self, config: TrainConfig, contents: Mapping[str, Any] | None, warm: WarmStart | None) -> None:
        self.config = config
        self.corpus = build_language.build_text_corpus(config.data)
        prepared = config.data.folder / "prepared"
        self.tokenizer = chosen_tokenizer(
            config,
            contents,
            warm,
            lambda: build_language.build_running_text_tokenizer(config.tokenizer, self.corpus.train, prepared),
        )
        self.train_tokens, self.valid_tokens = (
            tokenize_text(text, self.tokenizer, folder=prepared, description=f"{self.corpus.name} {name}")
            for name, text in (("train", self.corpus.train), ("valid", self.corpus.valid))
        )

    @property
    def corpus_fingerprint(self) -> str:
        return self.corpus.train.fingerprint

    @property
    def valid_fingerprint(self) -> str:
        return self.corpus.valid.fingerprint

    def saved(self) -> dict[str, Any]:
        return {"tokenizers": {"text": self.tokenizer.state()}}
