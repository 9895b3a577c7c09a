"""Our tokenizers for the library `tokenizers` of Hugging Face, with our ids.

A SentencePiece model is written anew: its folding of characters, its pieces and
their order, as that library takes them. The gate compares the ids on the lines of the sample.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headloom import build
from headloom.config import schema_labelled, schema_pretraining, schema_text
from headloom.config.schema import TrainConfig
from headloom.data.labelled import split_texts
from headloom.data.sentencepiece_model import Piece, PieceType, read_normalization, read_pieces
from headloom.data.tokenizer import ByteTokenizer, tokenizer_from_state
from headloom.data.tokenizer_base import Tokenizer
from headloom.work.base import Trained
from headloom.work.running_text import saved_tokenizer

FOLDER_OF_TARGET = "target"
SPACE = "\u2581"
UNLIKELY = -1e6
"""Log-probability of a piece that text never becomes, such as a special."""
MASK = "<mask>"
TIE_NATS = 1e-3


def tokenizers_of(trained: Trained) -> tuple[Tokenizer, Tokenizer]:
    """That of what the model reads and that of what it writes, mostly the same."""
    states = trained.contents["tokenizers"]
    match trained.config.task:
        case schema_text.TranslationConfig():
            return build.saved_tokenizers(states)
        case schema_labelled.LabelTaskConfig() | schema_labelled.RegressionConfig():
            tokenizer = tokenizer_from_state(states["source"])
        case _:
            tokenizer = saved_tokenizer(trained.contents)
    return tokenizer, tokenizer


def write_tokenizers(trained: Trained, folder: Path) -> None:
    """The tokenizers that can be written; that of what is written, where it is another, in a folder of its own."""
    source, target = tokenizers_of(trained)
    for tokenizer, place in ((source, folder), (target, folder / FOLDER_OF_TARGET)):
        if place == folder or target is not source:
            _write(trained.config, tokenizer, place)


def _write(config: TrainConfig, tokenizer: Tokenizer, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    core = _core(tokenizer)
    if core is None:
        return
    reads_both = not (isinstance(config.task, schema_text.TranslationConfig) or config.model.kind.name == "lm")
    names = {name: tokenizer.pieces([getattr(tokenizer, f"{name}_id")])[0] for name in ("bos", "eos", "unk", "pad")}
    core.post_processor = _template(config, tokenizer, names)
    masks = isinstance(config.task, schema_pretraining.MaskedLanguageModelingConfig)
    PreTrainedTokenizerFast(
        tokenizer_object=core,
        **{f"{name}_token": piece for name, piece in names.items()},
        **({"mask_token": MASK} if masks else {}),
        split_special_tokens=not masks,  # "</s>" in a text is its letters
        clean_up_tokenization_spaces=False,
        model_max_length=config.data.max_length,
        padding_side="left" if config.model.kind.name == "lm" else "right",
        model_input_names=["input_ids", *(["token_type_ids"] if reads_both else []), "attention_mask"],
    ).save_pretrained(folder)


def _template(config: TrainConfig, tokenizer: Tokenizer, names: dict[str, str]) -> Any:
    """What goes around a text: eos behind a source, bos before a prompt, both for an encoder."""
    from tokenizers.processors import TemplateProcessing

    bos, eos = names["bos"], names["eos"]
    pair = None
    if isinstance(config.task, schema_text.TranslationConfig):
        single = ["$A", eos]
    elif config.model.kind.name == "lm":
        single = [bos, "$A"]
    else:
        single = [bos, "$A", eos]
        pair = [f"{bos}:0", "$A:0", f"{eos}:0", "$B:1", f"{eos}:1"]
    return TemplateProcessing(
        single=single, pair=pair, special_tokens=[(bos, tokenizer.bos_id), (eos, tokenizer.eos_id)]
    )


def _core(tokenizer: Tokenizer) -> Any | None:
    """None: the library has nothing alike."""
    if isinstance(tokenizer, ByteTokenizer):
        return _bytes(tokenizer)
    model = tokenizer.state()["model"]
    pieces, normalization = read_pieces(model), read_normalization(model)
    apart = [piece.text for piece in pieces if piece.type is PieceType.user_defined]
    if tokenizer.kind == "word" or not normalization.escapes_spaces or (apart and normalization.adds_space):
        return None
    return _sentencepiece(tokenizer, pieces, apart, model)


def _sentencepiece(tokenizer: Tokenizer, pieces: Sequence[Piece], apart: Sequence[str], model: bytes) -> Any:
    import tokenizers
    from tokenizers import AddedToken, Regex, decoders, normalizers

    core = tokenizers.Tokenizer(_unigram(pieces) if tokenizer.kind == "unigram" else _merging(tokenizer, pieces))
    normalization = read_normalization(model)
    steps: list[Any] = []
    if normalization.character_map:
        steps.append(normalizers.Precompiled(normalization.character_map))
    if normalization.removes_spaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" +"), " ")]
    if normalization.adds_space:
        steps.append(normalizers.Prepend(SPACE))
    core.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    undone = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    core.decoder = decoders.Sequence([*undone, decoders.Strip(" ", 1, 0)] if normalization.adds_space else undone)
    core.add_tokens([AddedToken(text, normalized=False, special=False) for text in apart])
    return core


def _has_bytes(pieces: Sequence[Piece]) -> bool:
    return any(piece.type is PieceType.byte for piece in pieces)


def _unigram(pieces: Sequence[Piece]) -> Any:
    from tokenizers import models

    unknown = next(i for i, piece in enumerate(pieces) if piece.type is PieceType.unknown)
    scores = [(piece.text, piece.score if piece.type is PieceType.normal else UNLIKELY) for piece in pieces]
    return models.Unigram(scores, unk_id=unknown, byte_fallback=_has_bytes(pieces))


def _merging(tokenizer: Tokenizer, pieces: Sequence[Piece]) -> Any:
    """BPE with every way in which two pieces make a third, best first; of a model of characters none does."""
    from tokenizers import models

    ids = {piece.text: i for i, piece in enumerate(pieces)}
    merges = []
    if tokenizer.kind == "bpe":
        parts = {piece.text for piece in pieces if piece.type is PieceType.normal}
        for piece in sorted((one for one in pieces if one.type is PieceType.normal), key=lambda one: -one.score):
            halves = ((piece.text[:i], piece.text[i:]) for i in range(1, len(piece.text)))
            merges += [(left, right) for left, right in halves if left in parts and right in parts]
    return models.BPE(
        ids,
        merges,
        unk_token=tokenizer.pieces([tokenizer.unk_id])[0],
        fuse_unk=True,
        byte_fallback=_has_bytes(pieces),
    )


def _bytes(tokenizer: ByteTokenizer) -> Any:
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    first = tokenizer.vocab_size - 256
    ids = dict(zip(tokenizer.pieces(range(first)), range(first), strict=True))
    ids |= {letter: first + byte for byte, letter in enumerate(_letters())}
    core = tokenizers.Tokenizer(models.BPE(ids, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return core


def _letters() -> list[str]:
    """The letter that stands for each byte in that library: its own where it can be seen, else one from 256 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in seen)
    spare = {byte: 256 + i for i, byte in enumerate(others)}
    return [chr(spare.get(byte, byte)) for byte in range(256)]


def first_difference(trained: Trained, folder: Path, lines: Sequence[str]) -> int | None:
    """The first of `lines` to which the tokenizer in `folder` gives other ids than ours; None: there is none, or no
    tokenizer."""
    from transformers import AutoTokenizer

    if not (folder / "tokenizer.json").is_file():
        return None
    ours, _ = tokenizers_of(trained)
    scores = [piece.score for piece in read_pieces(ours.state()["model"])] if ours.kind == "unigram" else None
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    for number, line in enumerate(lines):
        for text in split_texts(line):
            [own] = ours.encode([text])
            found = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
            if found != own and not (scores and _is_tie(scores, own, found)):
                return number
    return None


def _is_tie(scores: Sequence[float], ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Whether unigrams make both segmentations equally likely, as in a row of dashes: the sum of log-probabilities is
    float32 in SentencePiece, and its rounding decides."""
    if max(theirs, default=0) >= len(scores):
        return False
    return abs(sum(scores[i] for i in ours) - sum(scores[i] for i in theirs)) < TIE_NATS
