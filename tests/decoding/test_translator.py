import logging
import random
from string import ascii_lowercase

import pytest
import torch

from headloom.data.tokenizer import ByteTokenizer
from headloom.decoding.counts import Counts
from headloom.decoding.ranking import LengthPenalty, Ranking
from headloom.decoding.requests import Beam, Greedy, Limits, Request, Sample
from headloom.decoding.sampling import Truncation
from headloom.decoding.scoring import score_pairs
from headloom.decoding.search import NOTHING, Hypothesis
from headloom.decoding.searcher import Sentence
from headloom.decoding.translator import SPARE_TOKENS, Translator
from headloom.errors import DataError
from headloom.models.seq2seq import Seq2Seq
from headloom.nn.evaluating import evaluating
from headloom.work.translation_filter import TranslationPredictor

CPU = torch.device("cpu")


def translator(model: Seq2Seq, **options) -> Translator:
    """A beam search unless `search` is given; limits and the options of the beam are given one by one."""
    beam = {name: options.pop(name) for name in ("beam_size", "num_best") if name in options}
    ranking = Ranking(options.pop("length_penalty", 0.6))
    names = ("max_length", "max_ratio", "min_length", "min_ratio")
    limits = {name: options.pop(name) for name in names if name in options}
    arguments = {
        "search": Beam(**{"beam_size": 3, "ranking": ranking, **beam}),
        "limits": Limits(**{"max_length": 12, "max_ratio": 1.0, **limits}),
        "max_tokens": 2000,
        "device": CPU,
        "autocast_dtype": None,
    }
    return Translator(model, ByteTokenizer(), ByteTokenizer(), **{**arguments, **options})


@pytest.fixture
def model(make_model) -> Seq2Seq:
    return make_model(
        ByteTokenizer.vocab_size, likely=[ByteTokenizer.eos_id, *ByteTokenizer().encode([ascii_lowercase])[0]]
    )


def lines_of_many_lengths(num: int, *, longest: int = 40) -> list[str]:
    draw = random.Random(1)
    return ["".join(draw.choice("abcdefgh ") for _ in range(1 + i * 17 % longest)).strip() or "x" for i in range(num)]


def close(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> bool:
    return [[h.ids for h in hs] for hs in found] == [[h.ids for h in hs] for hs in expected] and all(
        a.score == pytest.approx(b.score, abs=1e-5)
        for ours, theirs in zip(found, expected, strict=True)
        for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize(("position", "beam_size"), [("sinusoidal", 1), ("sinusoidal", 4), ("rope", 4)])
def test_a_line_is_translated_alike_in_any_batch(make_model, beam_size, position):
    """B71: one sentence a batch, some, all 50; and beside a very long and a very short neighbour."""
    model = make_model(ByteTokenizer.vocab_size, position=position)
    sources = ByteTokenizer().encode(lines_of_many_lengths(50))
    num_best = min(4, beam_size)

    def search(sources: list[list[int]], max_tokens: int) -> list[list[Hypothesis]]:
        some = translator(model, beam_size=beam_size, max_length=7, max_tokens=max_tokens, num_best=num_best)
        return some.search(sources)

    alone = search(sources, 1)
    assert close(search(sources, 7 * beam_size * 41), alone)
    assert close(search(sources, 10**9), alone)
    neighbours = ByteTokenizer().encode(["z" * 60, "z"])
    assert close(search([*neighbours, *sources[:5]], 10**9)[2:], alone[:5])
    assert len({tuple(best.ids) for best, *_ in alone}) > 10  # the model does tell sources apart


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rope"])
def test_the_score_is_what_the_model_gives_the_output_without_a_cache(make_model, position):
    """B75: every hypothesis of a beam of 4, by teacher forcing."""
    tokenizer = ByteTokenizer()
    model = make_model(ByteTokenizer.vocab_size, position=position, likely=tokenizer.encode(["abcdefgh"])[0])
    sources = tokenizer.encode(lines_of_many_lengths(12))
    found = translator(model, beam_size=4, length_penalty=0.0, num_best=4).search(sources)
    for source, hypotheses in zip(sources, found, strict=True):
        assert len(hypotheses) == 4
        for hypothesis in hypotheses:
            with evaluating(model):
                source_BS = torch.tensor([[*source, tokenizer.eos_id]])
                hidden_BTD = model(source_BS, None, torch.tensor([[tokenizer.bos_id, *hypothesis.ids]]))
                log_prob_TV = model.logits(hidden_BTD[0]).log_softmax(-1)
            target_T = torch.tensor([*hypothesis.ids, tokenizer.eos_id])
            forced = log_prob_TV.gather(-1, target_T[:, None]).sum().item()
            assert hypothesis.log_probability == pytest.approx(forced, abs=1e-4)
            assert hypothesis.score == hypothesis.log_probability


@pytest.mark.parametrize("max_tokens", [1, 4000])
def test_blank_lines_give_blank_lines_and_change_no_other(model, max_tokens):
    """B04: nothing, spaces, other white space, in batches of one and of all."""
    one, two = translator(model).translate(["ab cd"]), translator(model).translate(["ef"])
    lines = ["ab cd", "", "   ", "\u3000\t", "\u2028\x85 \x1c", "ef"]
    assert translator(model, max_tokens=max_tokens).translate(lines) == [*one, "", "", "", "", *two]
    assert translator(model).translate(["", " "]) == ["", ""]
    assert translator(model).translate([]) == []


def test_a_line_that_is_no_token_gives_a_blank_line(model):
    """B04: a tokenizer may make nothing of a line that is not white space."""

    class DropsDashes(ByteTokenizer):
        def encode(self, texts):
            return super().encode([text.replace("-", "") for text in texts])

    translator_ = translator(model)
    translator_.source_tokenizer = DropsDashes()
    assert translator_.translate(["a", "--", "b"]) == [
        translator(model).translate(["a"])[0],
        "",
        translator(model).translate(["b"])[0],
    ]


def test_outputs_keep_the_order_of_the_lines(model):
    """B76: whatever the lengths."""
    lines = lines_of_many_lengths(20)
    together = translator(model).translate(lines)
    assert len(set(together)) > 5
    assert together == [translator(model).translate([line])[0] for line in lines]
    assert translator(model).translate(lines[::-1]) == together[::-1]


def test_an_output_is_one_line(make_model):
    """B01: line ends of every kind that the model produces become spaces."""
    model = make_model(ByteTokenizer.vocab_size, sharpness=0.0)
    ends = [4 + byte for byte in b"\n\r\x0b\x0c\x1c\x1d\x1e"]
    with torch.no_grad():
        model.decoder.norm.bias.fill_(1.0)
        model.output.weight[ByteTokenizer.eos_id] = -1.0
        model.output.weight[ends] = torch.eye(16)[: len(ends)]
    tested = translator(model, beam_size=1)
    lines = ["a", "line\u2028with\x85ends\rin it"]
    assert all(set(best.ids) & set(ends) for [best] in tested.search(ByteTokenizer().encode(lines)))
    for output in tested.translate(lines):
        assert output
        assert len(output.splitlines()) == 1


@pytest.mark.parametrize("beam_size", [1, 3])
def test_outputs_end_at_their_limits(model, beam_size):
    """B16: at `max_length`, and at `max_ratio` times the source."""
    with torch.no_grad():
        model.output.weight[ByteTokenizer.eos_id] = 0.0
        model.output.weight[4:] = model.output.weight[4:].abs()
        model.decoder.norm.weight.zero_()
        model.decoder.norm.bias.fill_(1.0)
    sources = [[7] * 3, [7] * 30]
    found = translator(model, beam_size=beam_size, max_length=38, max_ratio=2.0).search(sources)
    assert [len(best.ids) + 1 for [best] in found] == [2 * 3 + SPARE_TOKENS, 38]


@pytest.mark.parametrize("num_pieces", [14, 15, 16, 17, 200, 10_000])
def test_a_source_longer_than_the_positions_is_cut(make_model, caplog, num_pieces):
    """B16: 16 positions hold 15 pieces and eos; one warning with the counts, never an index error."""
    model = make_model(ByteTokenizer.vocab_size, position="learned", max_length=16)
    lines = ["y", "x" * num_pieces, "x" * num_pieces]
    outputs = translator(model, max_length=16).translate(lines)
    assert outputs[1:] == translator(model, max_length=16).translate(["x" * min(num_pieces, 15)]) * 2
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [warning[:35] for warning in warnings] == ["2 of 3 lines are longer than 16 tok"] * (num_pieces > 15)


def test_a_longest_output_above_the_positions_is_said_and_lowered(make_model, caplog):
    """B16: `decoding.max_length` above the table."""
    model = make_model(ByteTokenizer.vocab_size, position="learned", max_length=16)
    found = translator(model, max_length=300, max_ratio=99.0)
    assert "outputs end at 16 tokens" in caplog.text
    assert all(len(best.ids) < 16 for [best] in found.search([[7] * 15] * 3))


def test_a_source_longer_than_the_longest_of_training_is_cut_if_asked(model):
    cut = translator(model, max_source_length=6)
    assert cut.translate(["abcdegh"]) == translator(model).translate(["abcde"])
    assert translator(model).translate(["abcdegh"]) != cut.translate(["abcdegh"])


def test_translating_leaves_modes_and_random_states_alone(model):
    """B28, B33, B70: dropout is off inside, and on again afterwards where it was on."""
    model.encoder.eval()  # frozen by someone: it stays so
    before = [module.training for module in model.modules()]
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    lines = lines_of_many_lengths(5)
    first, second = translator(model).translate(lines), translator(model).translate(lines)
    assert first == second
    assert [module.training for module in model.modules()] == before
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state


def test_the_mode_comes_back_after_an_error(model):
    def fail() -> None:
        with evaluating(model):
            assert not model.training
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert model.training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("position", ["sinusoidal", "rope"])
def test_a_model_trains_after_it_has_translated(make_model, position):
    """Tables that grew while it translated are fit for gradients."""
    model = make_model(ByteTokenizer.vocab_size, position=position)
    translator(model).translate(["abc"])
    model(torch.tensor([[5, 6]]), None, torch.tensor([[2, 5]])).sum().backward()
    assert all(parameter.grad is not None for parameter in model.encoder.parameters())


def test_batches_hold_every_row_once_within_the_budget(model):
    """Rows of similar length together, longest first; what counts is beam times longest output."""
    lengths = [1 + 31 * i % 40 for i in range(80)]
    some = translator(model, beam_size=3, max_length=12, max_tokens=600)
    batches = list(some._batches([Sentence([5] * n, min(12, n + SPARE_TOKENS)) for n in lengths]))
    assert sorted(row for batch in batches for row in batch) == list(range(80))
    for batch in batches:
        longest = max(lengths[row] for row in batch)
        assert len(batch) == 1 or len(batch) * 3 * max(longest + 1, min(12, longest + SPARE_TOKENS)) <= 600
    in_order = [lengths[row] for batch in batches for row in batch]
    assert in_order == sorted(in_order, reverse=True)


def test_a_model_whose_logits_are_not_finite_gives_blank_lines_and_a_warning(model, caplog):
    with torch.no_grad():
        model.output.weight[9] = torch.nan
    assert translator(model).translate(["ab", "", "c"]) == ["", "", ""]
    assert "2 of 3 lines have no translation" in caplog.text
    assert translator(model).search([[5]]) == [[NOTHING]]


def test_bfloat16_reaches_the_model(model):
    seen = []
    model.encoder.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    assert len(translator(model, autocast_dtype=torch.bfloat16).translate(["ab", "c"])) == 2
    translator(model).translate(["ab"])
    assert seen[0] is torch.bfloat16
    assert seen[-1] is torch.float32


def test_every_score_is_the_forced_score_of_its_text(model, make_model):
    """B75: also of two models together, whatever is asked of the output."""
    other = make_model(ByteTokenizer.vocab_size, likely=[3, *ByteTokenizer().encode(["abcdexyz"])[0]], sharpness=3.0)
    lines = lines_of_many_lengths(6)
    for models in (model, [model, other]):
        beam = Beam(beam_size=4, num_best=4, ranking=Ranking(0.5, LengthPenalty.power, coverage_penalty=0.3))
        for search in (beam, Sample(num_samples=4, truncation=Truncation(top_k=6)), Greedy(repetition_penalty=1.5)):
            some = translator(models, search=search, min_length=3, no_repeat_ngram=2, forbidden=["ab"])
            requests = [Request(source=line, prefix="c" * (i % 3)) for i, line in enumerate(lines)]
            outputs = [output for _, found in some.answers(requests, Counts()) for output in found]
            sources = [requests[row].source for row, found in some.answers(requests, Counts()) for _ in found]
            pairs = [(source, output.text) for source, output in zip(sources, outputs, strict=True)]
            num_compared = 0
            for row, _, log_probs in score_pairs(some, pairs, Counts()):
                if len(outputs[row].text) + 1 < outputs[row].num_tokens:
                    continue  # a token that no text holds
                num_compared += 1
                assert sum(log_probs) == pytest.approx(outputs[row].log_probability, abs=1e-4)
            assert num_compared > len(lines) - 2
            assert all(output.num_tokens >= 3 and " ab" not in " " + output.text for output in outputs)
            assert len(outputs) > len(lines) or isinstance(search, Greedy)


def test_the_positions_of_a_model_limit_what_is_forced(make_model, caplog):
    """B16: and it is said that a target is not scored whole."""
    model = make_model(ByteTokenizer.vocab_size, position="learned", max_length=16)
    counts = Counts()
    pairs = [("x" * 9, "y" * 99), ("x" * 9, "y" * 15)]
    found = dict((row, log_probs) for row, _, log_probs in score_pairs(translator(model), pairs, counts))
    assert [len(found[0]), len(found[1])] == [16, 16]
    counts.report()
    assert "1 of 2 targets are longer than 16 tokens" in caplog.text


def test_a_wish_for_which_the_model_has_no_positions_makes_a_bad_line(make_model):
    model = make_model(ByteTokenizer.vocab_size, position="learned", max_length=16)
    predictor = TranslationPredictor(translator(model, beam_size=2, max_length=16, required=["zz"]))
    predictor.read({"source": "x", "prefix": "y" * 8, "required": ["u" * 5]})
    with pytest.raises(DataError, match=r"asks for 16 tokens in its prefix .* positions of the model end at 16"):
        predictor.read({"source": "x", "prefix": "y" * 8, "required": ["u" * 6]})
