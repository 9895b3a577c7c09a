"""Forbidden phrases: kept out in any tokens, and nothing else is."""

import random

import pytest

from headloom.data.tokenizer import ByteTokenizer, Tokenizer, train_tokenizer
from headloom.decoding.forbidden import ForbiddenPhrases, phrase_text, vocabulary_of

WORDS = ["Tür", "Türen", "Gerät", "Geräte", "Gerätes", "Licht", "Lichter", "das", "nicht", "im", "Haus"]
LINES = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in ("das", "im Haus")]


@pytest.fixture(scope="module", params=["bpe", "unigram", "char", "byte", "running"])
def tokenizer(request) -> Tokenizer:
    if request.param == "byte":
        return ByteTokenizer()
    if request.param == "running":  # which puts no blank before a text
        return train_tokenizer(LINES, kind="bpe", vocab_size=310, running_text=True)
    return train_tokenizer(LINES, kind=request.param, vocab_size=None if request.param == "char" else 310)


def forbidding(tokenizer: Tokenizer, *phrases: str) -> ForbiddenPhrases:
    return ForbiddenPhrases(vocabulary_of(tokenizer), [phrase_text(tokenizer, phrase) for phrase in phrases])


def is_refused(phrases: ForbiddenPhrases, ids: list[int]) -> bool:
    state = phrases.start
    for i in ids:
        if i in phrases.banned(state):
            return True
        state = phrases.after(state, i)
    return False


def cuts(tokenizer: Tokenizer, text: str, draw: random.Random) -> list[int]:
    """Ids that write `text`, one of many ways; parts of characters are tokens of their own where there are such."""
    written = vocabulary_of(tokenizer).written
    left, ids = text.encode(), []
    while left:
        ids.append(draw.choice([i for i, piece in enumerate(written) if piece and left.startswith(piece)]))
        left = left.removeprefix(written[ids[-1]])
    return ids


def test_a_text_is_refused_if_a_word_of_it_begins_with_a_phrase_however_it_is_cut(tokenizer):
    draw = random.Random(1)
    num_refused = 0
    for _ in range(300):
        text = " " + " ".join(draw.choices(WORDS, k=3))
        start = draw.randrange(1, len(text))
        phrase = text[start : draw.randrange(start + 1, len(text) + 1)].strip()
        if phrase:
            holds = f" {phrase}" in text
            assert is_refused(forbidding(tokenizer, phrase), cuts(tokenizer, text, draw)) == holds, (text, phrase)
            num_refused += holds
    assert 50 < num_refused < 250


def test_a_phrase_may_end_inside_of_a_token(tokenizer):
    [ids] = tokenizer.encode(["Die Geräte im Haus"])
    for phrase in ("Gerät", "G", "Geräte im H", "im"):
        assert is_refused(forbidding(tokenizer, phrase), ids)
    for phrase in ("erät", "gerät", "Gerätes", "im Has"):
        assert not is_refused(forbidding(tokenizer, phrase), ids)


def test_several_blanks_are_one(tokenizer):
    draw = random.Random(1)
    assert is_refused(forbidding(tokenizer, "im  Haus"), cuts(tokenizer, " das   im   Haus", draw))


def test_a_word_begins_with_the_output(tokenizer):
    draw = random.Random(1)
    assert is_refused(forbidding(tokenizer, "Tür"), cuts(tokenizer, "Türen", draw))
    assert not is_refused(forbidding(tokenizer, "im"), cuts(tokenizer, "dasim", draw))


def test_bytes_that_form_no_character_hide_nothing():
    lead = b"\xc3"[0] + ByteTokenizer._FIRST
    [ids] = ByteTokenizer().encode(["Haus"])
    assert ByteTokenizer().decode([lead, ids[0], lead, *ids[1:]]) == "Haus"
    assert is_refused(forbidding(ByteTokenizer(), "Hau"), [lead, ids[0], lead, *ids[1:]])


def test_a_phrase_holds_for_the_whole_of_a_piece_with_blanks_in_it():
    phrases = ForbiddenPhrases(vocabulary_of(ByteTokenizer()), [" a"])
    assert set(phrases.banned(phrases.start)) == {ByteTokenizer._FIRST + ord("a")}


def test_the_sequences_of_a_phrase_refuse_what_its_text_refuses(tokenizer):
    """Where the output begins with a blank, as what was trained on does."""
    draw = random.Random(2)
    for phrase in ("Gerät", "im Ha", "L"):
        phrases = forbidding(tokenizer, phrase)
        sequences = set(phrases.sequences(10**6))
        assert set(phrases.sequences(3)) <= sequences
        for _ in range(40):
            ids = cuts(tokenizer, " " + " ".join(draw.choices(WORDS, k=3)), draw)
            runs = {tuple(ids[at:stop]) for at in range(len(ids)) for stop in range(at + 1, len(ids) + 1)}
            assert bool(runs & sequences) == is_refused(phrases, ids)
            assert phrases.found_in(ids) in (sequences if is_refused(phrases, ids) else {None})
