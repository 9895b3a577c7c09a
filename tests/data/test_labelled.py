"""Labelled text: which column holds what, labels as they are spelt, and faults named by file and line."""

import gzip
import json

import pytest

from headloom.data.conll import open_conll
from headloom.data.labelled import Columns, Format, Header, TextsOnly, open_labelled
from headloom.data.labels import find_labels, find_spread
from headloom.data.split import split_off
from headloom.data.text import PairList
from headloom.errors import ConfigError, DataError


@pytest.fixture
def opened(tmp_path):
    def open_content(content, *, name="train.tsv", header=Header.auto, **columns):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return open_labelled(path, columns=Columns(**columns), header=header, cache=tmp_path / "cache")

    return open_content


def rows(pairs):
    """All rows, read in order and by number, which must agree."""
    in_order = list(pairs)
    assert [pairs[row] for row in range(len(pairs))] == in_order
    with pytest.raises(IndexError):
        pairs[len(pairs)]
    with pytest.raises(IndexError):
        pairs[-1]
    return in_order


ROWS = [("good", "pos"), ("bad", "neg")]


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("good\tpos\nbad\tneg\n", {}),
        ("good\tpos\r\nbad\tneg", {}),
        (b"\xef\xbb\xbfgood\tpos\nbad\tneg\n", {}),
        ("pos\tgood\nneg\tbad\n", {"text": "1", "label": "0"}),
        ("sentence\tlabel\ngood\tpos\nbad\tneg\n", {}),
        ("Sentence\tLabel\ngood\tpos\nbad\tneg\n", {}),
        ("id\tlabel\ttext\n1\tpos\tgood\n2\tneg\tbad\n", {"text": "text"}),
        ("id\tmood\twords\n1\tpos\tgood\n2\tneg\tbad\n", {"text": "words", "label": "mood"}),
        ("\ufefflabel\ttext\npos\tgood\nneg\tbad\n", {"text": "text"}),
        (gzip.compress(b"good\tpos\nbad\tneg\n", mtime=0), {}),
        (gzip.compress(b"text\tlabel\ngood\tpos\nbad\tneg\n", mtime=0), {}),
    ],
)
def test_columns_are_found_by_number_and_by_name(opened, content, columns):
    """B02, B03: CRLF, a missing last line end and a byte order mark change no label and no name of a column."""
    assert rows(opened(content, **columns)) == ROWS


def test_a_header_can_be_said_to_be_there_or_not(opened):
    content = "words\tmood\ngood\tpos\n"
    assert rows(opened(content)) == [("words", "mood"), ("good", "pos")]
    assert rows(opened(content, header=Header.present)) == [("good", "pos")]
    content = "a text\tlabel\ngood\tpos\n"
    assert rows(opened(content, header=Header.absent)) == [("a text", "label"), ("good", "pos")]


def test_two_texts_are_one_source_with_a_tab_between(opened):
    assert rows(opened("0.5\ta b\tc\n", text="1", second_text="2", label="0")) == [("a b\tc", "0.5")]
    assert rows(opened("a b\tc\t0.5\n", second_text="1")) == [("a b\tc", "0.5")]
    record = json.dumps({"text": "a\tb", "other": "c\nd", "label": 1})
    assert rows(opened(record, name="a.jsonl", second_text="other")) == [("a b\tc d", "1")]


def test_labels_stay_text(opened):
    """B21."""
    labels = ["1", "01", "no", "None", "1.0", " x", "日本"]
    assert [label for _, label in rows(opened("".join(f"a\t{label}\n" for label in labels)))] == labels
    lines = "".join(json.dumps({"text": "a", "label": value}) + "\n" for value in ["01", "no", 1, 1.5, True])
    assert [label for _, label in rows(opened(lines, name="a.jsonl"))] == ["01", "no", "1", "1.5", "true"]


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("a\tb\nc\n", {}, "line 2 has 1 columns where 2 are needed"),
        ("a\tb\nc\t\n", {}, "line 2 has an empty label"),
        ("a\tb\nc\t \t\n", {}, "line 2 has an empty label"),
        ("a\tlabel\n", {}, "holds nothing but the names of its columns"),
        ("a\tb\n", {"text": "words"}, "has no column 'words': its first line names a, b"),
        ("a\tb\nc\td\n", {"header": Header.present, "text": "2"}, "has no column '2'"),
        ("label\tb\nc\td\n", {"text": "label"}, "must differ: set data.text"),
        ("", {}, "is empty"),
        (b"a\tb\n\xe9\tc\n", {}, "line 2 is not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_its_line(opened, content, columns, message):
    with pytest.raises(DataError, match=message):
        opened(content, **columns)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "a"}, "field 'label' is missing"),
        ({"text": "a", "label": None}, "field 'label' is not text"),
        ({"text": 3, "label": "a"}, "field 'text' is not text"),
        ({"text": "a", "label": ""}, "has an empty label"),
        (["a"], "is not a JSON object"),
    ],
)
def test_a_json_line_that_cannot_be_used_is_refused(opened, record, message):
    with pytest.raises(DataError, match=f"line 1.*{message}"):
        opened(json.dumps(record), name="a.jsonl")


def test_columns_that_cannot_be_are_refused(opened, tmp_path):
    with pytest.raises(ConfigError, match="two of them are one column"):
        Columns(text="0", label="0")
    with pytest.raises(ConfigError, match=r"data\.header=absent.*by name"):
        opened("a\tb\n", header=Header.absent, label="mood")
    with pytest.raises(DataError, match="cannot be read"):
        open_labelled(tmp_path / "missing.tsv", columns=Columns(), cache=tmp_path / "cache")


def test_the_format_can_be_said(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text('{"text": "a", "label": "b"}\n')
    assert rows(open_labelled(path, columns=Columns(), format=Format.jsonl, cache=tmp_path)) == [("a", "b")]


def test_only_a_line_feed_ends_a_row(opened):
    """B01."""
    strange = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\rh"
    assert rows(opened(f"x\tpos\n{strange}\tneg\n")) == [("x", "pos"), (strange, "neg")]


def test_a_tokenizer_sees_texts_only(opened):
    assert rows(TextsOnly(opened("a\tb\tlab\n", second_text="1"))) == [("a b", "")]


@pytest.mark.parametrize("order", [1, -1])
def test_labels_have_one_order_whatever_the_order_of_the_rows(tmp_path, order):
    """B21."""
    pairs = PairList([(f"t{i}", label) for i, label in enumerate(["no", "1", "01", "None", "no"])][::order])
    labels = find_labels(pairs, per_word=False, cache=tmp_path)
    assert (labels.names, labels.counts) == (["01", "1", "None", "no"], [1, 1, 1, 2])
    assert find_labels(pairs, per_word=False, cache=tmp_path) == labels


def test_labels_that_cannot_be_learned_are_refused(tmp_path):
    with pytest.raises(DataError, match="every row has the label 'a'"):
        find_labels(PairList([("t", "a")] * 3), per_word=False, cache=tmp_path)
    with pytest.raises(DataError, match=r"more than 10,000 different labels.*data\.label"):
        find_labels(PairList([("t", str(i)) for i in range(10_001)]), per_word=False, cache=tmp_path)


def test_texts_in_the_place_of_labels_are_refused_with_the_options_to_set(tmp_path):
    swapped = PairList([(label, f"text {i}") for i, label in enumerate(["pos", "neg"] * 3)], name="s.tsv")
    words = r"s\.tsv has 6 different labels, such as 'text 0', but 2 different texts, such as 'neg': .*data\.text and"
    with pytest.raises(DataError, match=words):
        find_labels(swapped, per_word=False, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []
    tags = PairList([("a", "X"), ("a", "Y")])  # a word may have several tags
    assert len(find_labels(tags, per_word=True, cache=tmp_path)) == 2


def test_the_spread_of_values_is_that_of_all_of_them():
    assert find_spread(PairList([("t", "1"), ("t", "3"), ("t", "1e0"), ("t", "3.0")])) == (2.0, 1.0)
    for label in ("x", "nan", "inf"):
        with pytest.raises(DataError, match=f"row 2 .*label '{label}' is no finite number"):
            find_spread(PairList([("t", "1"), ("t", label)]))
    with pytest.raises(DataError, match="all values are 1"):
        find_spread(PairList([("t", "1"), ("t", "1.0")]))


def test_a_row_that_is_refused_is_named_by_its_line_in_the_file_also_after_a_split(opened, tmp_path):
    pairs = opened("text\tlabel\n" + "".join(f"{name}\t{number}\n" for number, name in enumerate("abcdefghijkl")))
    assert pairs.place(0) == f"{tmp_path / 'train.tsv'}: line 2"
    for part in split_off(pairs, 0.4, cache=tmp_path):
        for row, (_, number) in enumerate(part):
            assert part.place(row) == f"{tmp_path / 'train.tsv'}: line {int(number) + 2}"


@pytest.fixture
def sentences(tmp_path):
    def open_content(content, **columns):
        path = tmp_path / "train.conll"
        path.write_text(content, encoding="utf-8", newline="")
        return open_conll(path, cache=tmp_path / "cache", **columns)

    return open_content


@pytest.mark.parametrize(
    "content",
    [
        "New\tB-loc\nYork\tI-loc\n\nyes\tO\n",
        "New B-loc\nYork I-loc\n\nyes O",
        "\n\nNew\tB-loc\r\nYork\tI-loc\r\n\r\n \t\nyes\tO\r\n\r\n",
        "-DOCSTART- -X- O\n\nNew NNP B-loc\nYork NNP I-loc\n\n-DOCSTART- -X- O\nyes UH O\n",
    ],
)
def test_an_empty_line_parts_sentences(sentences, content):
    assert rows(sentences(content)) == [("New York", "B-loc I-loc"), ("yes", "O")]


def test_columns_of_words_and_tags_can_be_chosen(sentences):
    assert rows(sentences("1 O New NNP\n", token_column=2, tag_column=1)) == [("New", "O")]


@pytest.mark.parametrize("end", ["", " ", "  ", "\r"])
@pytest.mark.parametrize(
    "line", ["New NNP B-loc", "New  NNP   B-loc", " New NNP B-loc", "New\tNNP\tB-loc", "New \tNNP\t B-loc"]
)
@pytest.mark.parametrize("tag_column", [2, None])
def test_blanks_around_words_and_tags_are_no_part_of_them(sentences, line, end, tag_column):
    """Neither is a word lost to them, nor is a tag taken for another one."""
    assert rows(sentences(f"{line}{end}\nx X O{end}\n", tag_column=tag_column)) == [("New x", "B-loc O")]


def test_a_blank_inside_a_word_does_not_part_it(sentences):
    assert rows(sentences("1 000\tO\nx\tO\n")) == [("1\u00a0000 x", "O O")]


def test_sentences_that_cannot_be_used_are_refused(sentences):
    with pytest.raises(DataError, match="line 2 has 1 columns where 2 are needed"):
        sentences("a O\nb\n")
    for content in ("a\t\n", "a\t \n", "\tO\n", " \tO\n"):
        with pytest.raises(DataError, match="line 1 has an empty word or tag"):
            sentences(content)
    with pytest.raises(DataError, match="holds no sentence"):
        sentences("\n\n")
    with pytest.raises(ConfigError, match="both 1"):
        sentences("a O\n", token_column=1, tag_column=1)
    with pytest.raises(ConfigError, match="columns count from 0"):
        sentences("a O\n", token_column=-1)
