"""CTranslate2 in place of our own search; needs the package ctranslate2.

Its beam search is ours up to the end: as many hypotheses of the same
log-probabilities grow side by side. It ends when as many have ended as the beam
is wide (without a length penalty: when the likeliest candidate ends), where ours
goes on while a better one is possible. What has ended is ranked by our own
length penalty, which has forms that it does not know.

What may not be written has no probability there: that of pad and bos, of
forbidden phrases and of an end that comes too early is divided among the other
tokens, where our log-probabilities are those of the whole vocabulary.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headloom.data.tokenizer_base import Tokenizer
from headloom.decoding.forbidden import ForbiddenPhrases, vocabulary_of
from headloom.decoding.ranking import Ranking
from headloom.decoding.requests import Beam, Greedy, Search
from headloom.decoding.search import NOTHING, Hypothesis
from headloom.decoding.searcher import Sentence
from headloom.errors import CheckpointError

MOST_SEQUENCES = 1000
"""Of tokens that spell forbidden phrases. The search knows no text and compares each of them with each row at every
step, and there may be many thousands: where it finds one of the others, it searches again without that."""
MOST_SEARCHES = 100
"""For one sentence. After that it has no output: 100 ways to write a phrase are a model that writes nothing else."""
TOKENS_AT_ONCE = 1024
"""Source tokens that CTranslate2 computes together. Of a base model on two threads 512 take a sixth longer, of a small
one on one thread they do not."""


class CTranslate2Engine:
    """See `engine.Engine`. It divides what it is given into batches itself.

    `folder`: what python -m headloom.export wrote.

    Raises:
        CheckpointError: CTranslate2 cannot read the folder.
    """

    num_sentences = 256

    def __init__(self, folder: Path, *, max_length: int | None, device: str, num_threads: int) -> None:
        import ctranslate2

        self.max_length = max_length
        try:
            self.program = ctranslate2.Translator(str(folder), device=device, intra_threads=num_threads)
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{folder} cannot be read by CTranslate2 ({error}): export again") from error

    def searching(
        self,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        search: Search,
        no_repeat_ngram: int | None,
    ) -> "CTranslate2Search":
        return CTranslate2Search(
            self.program,
            source_tokenizer,
            target_tokenizer,
            search=search,
            no_repeat_ngram=no_repeat_ngram,
            max_length=self.max_length,
        )


class CTranslate2Search:
    """See `engine.BatchSearch`.

    A sentence gets the same output in any batch: what decides it are its own
    limits, the longest rounded up to a power of two, so that neighbours of
    similar length still are one batch, and the output cut to the limit.
    """

    def __init__(
        self,
        program: Any,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        search: Search,
        no_repeat_ngram: int | None,
        max_length: int | None,
    ) -> None:
        self.program = program
        self.max_length = max_length
        self.source_pieces = source_tokenizer.pieces(range(source_tokenizer.vocab_size))
        self.target_pieces = target_tokenizer.pieces(range(target_tokenizer.vocab_size))
        self.id_of = {piece: i for i, piece in enumerate(self.target_pieces)}
        self.never = ((target_tokenizer.pad_id,), (target_tokenizer.bos_id,))
        self.decode = target_tokenizer.decode
        self.target_tokenizer = target_tokenizer
        self.num_best = 1
        self.ranking = Ranking()
        self.options: dict[str, Any] = {"beam_size": 1, "no_repeat_ngram_size": no_repeat_ngram or 0}
        match search:
            case Beam(beam_size=beam_size, num_best=num_best, ranking=ranking) if not ranking.coverage_penalty:
                # Where nothing divides the log-probabilities, the likeliest end ends the search.
                self.num_best, self.ranking = num_best, ranking
                wanted = beam_size if ranking.length_penalty else num_best
                self.options |= {"beam_size": beam_size, "num_hypotheses": wanted}
            case Greedy(repetition_penalty=1.0):
                pass
            case _:
                raise AssertionError(f"{search} is refused where options are checked")

    def search(self, sentences: Sequence[Sentence]) -> list[list[Hypothesis]]:
        groups: dict[Any, list[int]] = {}
        for place, sentence in enumerate(sentences):
            assert not sentence.prefix
            assert not sentence.required
            limits = (self._rounded_up(sentence.longest), sentence.shortest)
            groups.setdefault((*limits, sentence.forbidden), []).append(place)
        found: list[list[Hypothesis]] = [[] for _ in sentences]
        for (longest, shortest, forbidden), places in groups.items():
            phrases = ForbiddenPhrases(vocabulary_of(self.target_tokenizer), forbidden) if forbidden else None
            suppressed = phrases.sequences(MOST_SEQUENCES) if phrases is not None else []
            batch = [sentences[place] for place in places]
            for place, result in zip(places, self._results(batch, longest, shortest, suppressed), strict=True):
                if phrases is not None:
                    result = self._without(phrases, result, sentences[place], longest, shortest, suppressed)
                found[place] = (
                    [NOTHING] if result is None else self._hypotheses(result, sentences[place].longest, longest)
                )
        return found

    def _results(
        self, sentences: Sequence[Sentence], longest: int, shortest: int, suppressed: Sequence[tuple[int, ...]]
    ) -> list[Any]:
        results: list[Any] = self.program.translate_batch(
            [[self.source_pieces[i] for i in sentence.source] for sentence in sentences],
            max_batch_size=TOKENS_AT_ONCE,
            batch_type="tokens",
            max_input_length=0,
            max_decoding_length=longest - 1,
            min_decoding_length=max(0, shortest - 1),
            suppress_sequences=[[self.target_pieces[i] for i in ids] for ids in (*self.never, *suppressed)],
            length_penalty=self.ranking.length_penalty,
            return_scores=True,
            **self.options,
        )
        return results

    def _without(
        self,
        phrases: ForbiddenPhrases,
        result: Any,
        sentence: Sentence,
        longest: int,
        shortest: int,
        suppressed: Sequence[tuple[int, ...]],
    ) -> Any:
        """The result of a search in which no phrase is met in any tokens; None: there is none."""
        met: list[tuple[int, ...]] = []
        for _ in range(MOST_SEARCHES):
            outputs = [[self.id_of[piece] for piece in pieces] for pieces in result.hypotheses]
            again = [ids for output in outputs if (ids := phrases.found_in(output)) is not None]
            if not again:
                return result
            met += again
            [result] = self._results([sentence], longest, shortest, [*suppressed, *met])
        return None

    def _hypotheses(self, result: Any, longest: int, searched: int) -> list[Hypothesis]:
        """The best of one sentence; `searched`: the limit of the search, `longest`: that of the sentence."""
        by_text: dict[str, Hypothesis] = {}
        ranked = []
        for pieces, score in zip(result.hypotheses, result.scores, strict=True):
            length = min(len(pieces) + 1, searched - 1)  # eos counted, which is not there at the limit
            log_probability = score * max(1, length) ** self.ranking.length_penalty
            ids = [self.id_of[piece] for piece in pieces[: longest - 1]]
            divided = log_probability / float(self.ranking.divisor(len(ids) + 1))
            ranked.append(Hypothesis(ids, log_probability, divided))
        for hypothesis in sorted(ranked, key=lambda hypothesis: -hypothesis.score):
            by_text.setdefault(self.decode(hypothesis.ids) if self.num_best > 1 else str(hypothesis.ids), hypothesis)
        return list(by_text.values())[: self.num_best] or [NOTHING]

    def _rounded_up(self, length: int) -> int:
        power = max(2, 1 << (length - 1).bit_length())  # the search wants to write a token besides eos
        return power if self.max_length is None else min(power, self.max_length)
