"""Fetching with an expected SHA-256. The index is a folder and the address a file: no test needs a network."""

import hashlib
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headloom.data.download import fetch_file, fetch_source_package, fetch_wheel
from headloom.errors import DataError

CONTENT = b"some bytes\n" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def original(tmp_path) -> Path:
    path = tmp_path / "original.gz"
    path.write_bytes(CONTENT)
    return path


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_fetched_once(original, tmp_path):
    place = tmp_path / "data" / "kept.gz"
    assert fetch_file(original.as_uri(), place, sha256=SHA256, size=len(CONTENT)) == place
    assert place.read_bytes() == CONTENT
    original.unlink()
    fetch_file(original.as_uri(), place, sha256=SHA256, size=len(CONTENT))
    assert left_in(place.parent) == ["kept.gz"]


def test_a_file_with_another_hash_is_refused_and_not_kept(original, tmp_path):
    original.write_bytes(CONTENT + b"!")
    with pytest.raises(
        DataError, match=rf"original\.gz has SHA-256 \w+ instead of {SHA256}: it is not the file it was"
    ):
        fetch_file(original.as_uri(), tmp_path / "data" / "kept.gz", sha256=SHA256, size=len(CONTENT))
    assert left_in(tmp_path / "data") == []


def test_a_kept_file_that_was_changed_is_refused(original, tmp_path):
    """B22."""
    place = tmp_path / "kept.gz"
    place.write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(DataError, match=r"kept\.gz has SHA-256 \w+ instead of \w+: delete it to fetch it again"):
        fetch_file(original.as_uri(), place, sha256=SHA256, size=len(CONTENT))


def test_a_file_that_cannot_be_fetched_says_what_to_do_in_one_line(tmp_path):
    for address in ((tmp_path / "absent").as_uri(), "http://127.0.0.1:9/file.gz"):
        with pytest.raises(DataError) as failure:
            fetch_file(address, tmp_path / "data" / "kept.gz", sha256=SHA256, size=1)
        assert str(failure.value).startswith(f"{address} cannot be fetched (")
        assert str(failure.value).endswith("connect to the network and run again, or give a copy with data.path=")
        assert "\n" not in str(failure.value)
    assert left_in(tmp_path / "data") == []


def test_a_folder_that_cannot_be_written_to_is_refused(original, tmp_path):
    with pytest.raises(
        DataError, match=r"original\.gz cannot be written to \(File exists\); choose another data\.folder"
    ):
        fetch_file(original.as_uri(), original / "kept.gz", sha256=SHA256, size=len(CONTENT))


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder with the wheel of a project, as the only place where pip looks."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "interface_texts-2.0-py3-none-any.whl", "w") as archive:
        about = "interface_texts-2.0.dist-info"
        archive.writestr("interface_texts/de.json", "{}")
        metadata = "Metadata-Version: 2.1\nName: interface_texts\nVersion: 2.0\nRequires-Python: >=9\n"
        archive.writestr(f"{about}/METADATA", metadata + "Requires-Dist: something-that-is-nowhere\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_wheel_is_fetched_with_pip_once_whatever_it_requires(index, tmp_path, monkeypatch):
    wheel = next(index.iterdir())
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    arguments = {"folder": tmp_path / "data", "sha256": sha256, "size": wheel.stat().st_size}
    path = fetch_wheel("interface_texts", "2.0", **arguments)
    assert path == tmp_path / "data" / wheel.name
    assert path.read_bytes() == wheel.read_bytes()
    assert left_in(tmp_path / "data") == [wheel.name]
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "absent"))
    assert fetch_wheel("interface_texts", "2.0", **arguments) == path
    path.write_bytes(b"changed")
    with pytest.raises(DataError, match="delete it to fetch it again"):
        fetch_wheel("interface_texts", "2.0", **arguments)


def test_a_wheel_with_another_hash_is_refused_and_not_kept(index, tmp_path):
    with pytest.raises(DataError, match=r"^interface_texts==2\.0: the file of the package index has not the expected"):
        fetch_wheel("interface_texts", "2.0", folder=tmp_path / "data", sha256="0" * 64, size=1)
    assert left_in(tmp_path / "data") == []


def test_a_wheel_that_cannot_be_fetched_says_what_to_do_in_one_line(index, tmp_path, monkeypatch):
    with pytest.raises(DataError) as failure:
        fetch_wheel("interface_texts", "3.0", folder=tmp_path / "data", sha256="0" * 64, size=1)
    assert str(failure.value).startswith("interface_texts==3.0 cannot be fetched (No matching distribution")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(DataError) as failure:
        fetch_wheel("interface_texts", "2.0", folder=tmp_path / "data", sha256="0" * 64, size=1)
    message = str(failure.value)
    assert message.startswith("interface_texts==2.0 cannot be fetched (")
    assert message.endswith("connect to the network and run again, or give the file with data.path=")
    assert "\n" not in message
    assert left_in(tmp_path / "data") == []


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def source_package(tmp_path, monkeypatch) -> Iterator[Path]:
    """A source package whose build leaves a trace, on a server of this machine as the only place where pip looks."""
    folder = tmp_path / "index"
    folder.mkdir()
    (tmp_path / "setup.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'w')", encoding="utf-8")
    with tarfile.open(folder / "texts-1.0.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "setup.py", "texts-1.0/setup.py")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", f"http://127.0.0.1:{server.server_port}/")
    yield folder / "texts-1.0.tar.gz"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_source_package_is_fetched_once_and_nothing_of_it_is_run(source_package, tmp_path, monkeypatch):
    sha256 = hashlib.sha256(source_package.read_bytes()).hexdigest()
    arguments = {"folder": tmp_path / "data", "sha256": sha256, "size": source_package.stat().st_size}
    path = fetch_source_package("texts", "1.0", **arguments)
    assert path.read_bytes() == source_package.read_bytes()
    assert left_in(tmp_path / "data") == ["texts-1.0.tar.gz"]
    assert not (tmp_path / "was_run").exists()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "absent"))
    assert fetch_source_package("texts", "1.0", **arguments) == path


def test_a_source_package_with_another_hash_is_refused_and_not_kept(source_package, tmp_path):
    with pytest.raises(DataError, match=r"^texts==1\.0: the file of the package index has not the expected SHA-256"):
        fetch_source_package("texts", "1.0", folder=tmp_path / "data", sha256="0" * 64, size=1)
    assert left_in(tmp_path / "data") == []
    assert not (tmp_path / "was_run").exists()
