"""The default corpus: pairs from a wheel, their cleaning and their split."""

import json
import logging
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from headloom.data.download import sha256_of
from headloom.data.files import open_tsv
from headloom.data.homeassistant import SHA256, VERSION, clean_pairs, homeassistant, prepare
from headloom.data.split import masked, normalised
from headloom.errors import DataError

COLOURS = ["red", "green", "blue", "black", "white", "grey", "pink", "brown", "violet", "orange"]
THINGS = ["door", "lamp", "fan", "lock", "clock", "heater", "camera", "siren", "valve", "scale"]


def make_wheel(path: Path, texts: dict[str, dict[str, object]]) -> Path:
    """A zip with translations as the wheel has them: {"lamp/de": {...}}."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("homeassistant/components/lamp/light.py", "raise SystemExit('code of the wheel was run')")
        for name, content in texts.items():
            component, language = name.split("/")
            archive.writestr(
                f"homeassistant/components/{component}/translations/{language}.json",
                json.dumps(content, ensure_ascii=False),
            )
    return path


@pytest.fixture
def wheel(tmp_path) -> Path:
    """100 English texts in German and one in French."""
    english = {f"{c}_{t}": f"open the {c} {t} now" for c in COLOURS for t in THINGS}
    german = {key: text.replace("open", "öffne").replace("now", "jetzt") for key, text in english.items()}
    return make_wheel(
        tmp_path / "some.whl",
        {
            "lamp/en": {"config": {"step": english}, "title": "Lamp"},
            "lamp/de": {"config": {"step": german}, "title": "Lampe"},
            "lamp/fr": {"config": {"step": {"red_door": "ouvre la porte rouge"}}},
            "lamp/zh-Hans": {},
        },
    )


def cleaned(*aligned: tuple[str, str], language: str = "de") -> list[tuple[str, str]]:
    return clean_pairs(iter(aligned), language)


def test_texts_under_the_same_key_path_are_a_pair(tmp_path):
    wheel = make_wheel(
        tmp_path / "some.whl",
        {
            "lamp/en": {"a": {"b": "switch it on"}, "b": "switch it off", "n": 3},
            "lamp/de": {"b": "schalte es aus", "a": {"b": "schalte es ein", "c": "nur deutsch da"}, "n": 3},
            "fan/en": {"b": "only in English"},
        },
    )
    with pytest.raises(DataError, match="has only 2 usable texts"):
        prepare(wheel, "de")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("Two\nlines here", "Zwei Zeilen hier"),
        ("Two lines here", "Zwei Zeilen\nhier\n"),
        ("Hello {name} there", "Hallo {name} dort"),
        ("Hello there", "Hallo <b>dort</b>"),
        ("A `code` word", "Ein Wort"),
        ("Read [this page]", "Lies diese Seite"),
        ("See https://example.org now", "Siehe dort jetzt"),
        ("See there now", "Siehe www.example.org jetzt"),
        ("A **bold** word", "Ein fettes Wort"),
        ("Speed in %d steps", "Tempo in Schritten"),
        ("White brightness 50%", "Weißhelligkeit 50 %"),
        ("Same in both", "Same in both"),
        ("Word", "Einzelwort"),
        ("one " * 41, "ein " * 41),
        ("A very long English text", "Kurz"),
        ("Short one", "Ein sehr langer deutscher Text ohne Grund"),
    ],
)
def test_a_text_that_is_no_plain_sentence_is_dropped(source, target):
    assert cleaned((source, target), ("A good pair", "Ein gutes Paar")) == [("A good pair", "Ein gutes Paar")]


def test_white_space_becomes_single_blanks():
    assert cleaned(("  z. B.\u202fthis \u00a0one", "z.\u00a0B.  dieses\thier ")) == [
        ("z. B. this one", "z. B. dieses hier")
    ]


def test_each_english_text_keeps_its_most_frequent_translation_and_of_equals_the_first():
    pairs = [("turn off", "ausschalten"), ("turn off", "abschalten"), ("turn off", "abschalten")]
    assert cleaned(*pairs, ("go up", "nach oben"), ("go up", "hinauf")) == [
        ("turn off", "abschalten"),
        ("go up", "nach oben"),
    ]


def test_scripts_that_need_few_characters_have_their_own_length_ratio():
    pair = ("The device is already configured", "设备已配置完成")
    assert cleaned(pair, language="zh-Hans") == [pair]
    assert cleaned(pair, language="de") == []


def test_a_corpus_is_prepared_from_a_wheel_that_is_there_and_no_code_of_it_runs(wheel, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        corpus = homeassistant(target_language="de", folder=tmp_path / "data", path=wheel)
    assert [len(part) for part in (corpus.train, corpus.valid, corpus.test)] == [80, 10, 10]
    assert corpus.name == "homeassistant-en-de"
    everything = [*corpus.train, *corpus.valid, *corpus.test]
    assert ("open the red door now", "öffne the red door jetzt") in everything
    assert len(set(everything)) == 100
    assert "some.whl is not homeassistant==" in caplog.text
    assert "prepared homeassistant-en-de: 80 train, 10 valid, 10 test pairs" in caplog.text


def test_a_folder_that_holds_the_wheel_will_do(wheel, tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel.rename(folder / f"homeassistant-{VERSION}-py3-none-any.whl")
    assert len(homeassistant(target_language="de", folder=tmp_path / "data", path=folder).train) == 80


def test_another_wheel_makes_another_corpus(wheel, tmp_path):
    """B22."""
    before = homeassistant(target_language="de", folder=tmp_path / "data", path=wheel)
    make_wheel(
        wheel,
        {
            f"lamp/{code}": {str(i): f"{word} number {i} {'abcdefghij'[i % 10] * (1 + i // 10)}" for i in range(100)}
            for code, word in (("en", "text"), ("de", "Satz"))
        },
    )
    after = homeassistant(target_language="de", folder=tmp_path / "data", path=wheel)
    assert after.train[0] == ("text number 0 a", "Satz number 0 a")
    assert after.train.fingerprint != before.train.fingerprint


def test_an_unknown_language_is_refused_with_the_nearest_and_the_known_ones(wheel, tmp_path):
    with pytest.raises(DataError) as refusal:
        homeassistant(target_language="zh_hans", folder=tmp_path / "data", path=wheel)
    assert str(refusal.value) == (
        "data.target_language=zh_hans is not in the wheel. Did you mean zh-Hans? Known: de, fr, zh-Hans"
    )
    with pytest.raises(DataError, match=r"not in the wheel\. Known: de, fr, zh-Hans$"):
        homeassistant(target_language="../x", folder=tmp_path / "data", path=wheel)
    with pytest.raises(DataError, match=r"data\.target_language=en is the source language"):
        homeassistant(target_language="en", folder=tmp_path / "data", path=wheel)
    assert not list((tmp_path / "data").glob("*homeassistant*"))


def test_a_language_with_too_few_texts_is_refused(wheel, tmp_path):
    with pytest.raises(DataError, match=r"target_language=fr: some\.whl has only 1 usable texts"):
        homeassistant(target_language="fr", folder=tmp_path / "data", path=wheel)


def test_a_file_that_is_no_such_wheel_is_refused_by_name(tmp_path):
    folder = tmp_path / "data"
    (tmp_path / "text.whl").write_bytes(b"no zip at all")
    with pytest.raises(DataError, match=r"text\.whl cannot be read as a wheel: File is not a zip file"):
        homeassistant(target_language="de", folder=folder, path=tmp_path / "text.whl")
    with pytest.raises(DataError, match=r"other\.whl holds no file homeassistant/components"):
        homeassistant(target_language="de", folder=folder, path=make_wheel(tmp_path / "other.whl", {}))
    with pytest.raises(DataError, match=r"absent\.whl cannot be read: No such file"):
        homeassistant(target_language="de", folder=folder, path=tmp_path / "absent.whl")
    broken = tmp_path / "broken.whl"
    with zipfile.ZipFile(broken, "w") as archive:
        for language in ("en", "de"):
            archive.writestr(f"homeassistant/components/lamp/translations/{language}.json", '{"a": ')
    with pytest.raises(DataError, match=r"lamp/translations/en\.json in the wheel is not JSON"):
        homeassistant(target_language="de", folder=folder, path=broken)


def test_the_recipe_makes_the_pairs_it_made_when_its_version_was_given(wheel):
    """If this fails and you meant to change no pairs, you changed some.

    If you did mean to, raise _RECIPE_VERSION, so that prepared corpora are made
    anew, and record the new values.
    """
    splits = prepare(wheel, "de")
    assert [splits[name][0][0] for name in ("train", "valid", "test")] == [
        "open the red door now",
        "open the white lamp now",
        "open the violet camera now",
    ]


@pytest.fixture(scope="module")
def shared_splits(shared_data, tmp_path_factory) -> dict[str, list[tuple[str, str]]]:
    """The corpus as others made it from the same wheel by the same rules."""
    folder = shared_data / "homeassistant" / "en_de"
    if not folder.is_dir():
        pytest.skip("the shared data has no homeassistant/en_de")
    cache = tmp_path_factory.mktemp("lines")
    names = {"train": "train", "valid": "val", "test": "test"}
    return {split: list(open_tsv(folder / f"{name}.tsv.gz", cache=cache)) for split, name in names.items()}


def test_valid_and_test_texts_of_the_real_corpus_have_no_near_copy_anywhere(shared_splits):
    everything = [pair for pairs in shared_splits.values() for pair in pairs]
    keys = (lambda p: normalised(p[0]), lambda p: masked(p[0]), lambda p: normalised(p[1]))
    for key in keys:
        counts = Counter(map(key, everything))
        assert {counts[key(pair)] for split in ("valid", "test") for pair in shared_splits[split]} == {1}


def test_the_wheel_gives_the_very_pairs_that_others_made_of_it(shared_splits, wheel_of_release):
    splits = prepare(wheel_of_release, "de")
    assert splits["test"] == shared_splits["test"]
    assert splits["valid"] == shared_splits["valid"]
    assert sorted(splits["train"]) == sorted(shared_splits["train"])


@pytest.fixture(scope="module")
def wheel_of_release() -> Path:
    path = Path(__file__).parents[2] / "data" / f"homeassistant-{VERSION}-py3-none-any.whl"
    if not path.is_file():
        pytest.skip("the wheel is not in data/; `make demo` fetches it")
    assert sha256_of(path) == SHA256
    return path
