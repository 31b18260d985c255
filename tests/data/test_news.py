"""20news: the right posts in the right order, whatever they are read from; damage is named."""

from __future__ import annotations

import codecs
import hashlib
import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from difformer.data.fetch import Source, Web
from difformer.data.registry import fetch_dataset, load_dataset
from difformer.errors import DataError
from difformer_paper.datasets import news

WORDS = ("engine", "orbit", "doctor", "puck")


def text_of(group: int, number: int) -> str:
    return f"Subject: {WORDS[group % 4]}\n\nthe {WORDS[(group + number) % 4]} {WORDS[group % 4]}\n"


def posts() -> dict[str, bytes]:
    """Six posts a class, by their name in the collection; one byte is not ASCII."""
    return {
        f"{part}/{group}/{100 * i + k}": (text_of(i, k) + "\xe9").encode("latin1")
        for part in news.PARTS
        for i, group in enumerate(news.CLASSES)
        for k in range(3)
    }


def write_archive(path: Path, files: dict[str, bytes], *extra: tarfile.TarInfo) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, f"w:{path.suffix[1:]}") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in extra:
            archive.addfile(info)
    return path


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news, "NUM_POSTS", len(posts()))


def test_the_real_archive_has_the_paper_s_sizes(data_root: Path) -> None:
    data = load_dataset("20news", data_root)
    assert (data.num_rows, data.num_features, data.num_outputs) == (9607, 236, 10)
    lengths = torch.zeros(9607).index_add_(
        0, torch.arange(9607).repeat_interleave(data.x.crow_indices().diff()), data.x.values() ** 2
    )
    assert float(lengths.max()) == pytest.approx(1, abs=1e-5)
    for labels, test in ((100, 7607), (200, 6607), (400, 4607)):
        split = data.split(f"per-class:{labels}:0")
        sizes = [split.train.numel(), split.val.numel(), split.test.numel()]
        assert sizes == [10 * labels, 1000, test]


def test_archive_and_folder_give_the_same_rows(tmp_path: Path, few: None) -> None:
    files = posts()
    extra = {"20news-bydate-train/sci.lang/1": b"not one of the ten", "../evil": b"x"}
    write_archive(tmp_path / "a/20news/20news-bydate.tar.xz", {**extra, **files})
    write_archive(
        tmp_path / "b/20news/20news-bydate.tar.gz", dict(reversed({**files, **extra}.items()))
    )
    for name, content in files.items():
        file = tmp_path / "c/20news" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    one, two, three = (load_dataset("20news", tmp_path / part) for part in "abc")
    for other in (two, three):
        assert torch.equal(one.y, other.y)
        assert torch.equal(one.x.to_dense(), other.x.to_dense())
    assert one.y.tolist() == [i for _ in range(2) for i in range(10) for _ in range(3)]
    assert one.num_features == 4 + 1  # the four words and "subject"


def test_no_member_of_an_archive_but_a_post_is_read(tmp_path: Path) -> None:
    link = tarfile.TarInfo("20news-bydate-train/sci.space/9")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
    path = write_archive(tmp_path / "20news-bydate.tar.gz", posts(), link)
    assert len(news.read_posts(path)) == len(posts())
    assert [p.name for p in tmp_path.iterdir()] == ["20news-bydate.tar.gz"]


@pytest.mark.parametrize(("suffix", "keep"), [("xz", 0.01), ("xz", 0.95), ("gz", 0.3)])
def test_a_truncated_archive_is_named(tmp_path: Path, suffix: str, keep: float) -> None:
    path = write_archive(tmp_path / f"20news/20news-bydate.tar.{suffix}", posts())
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(DataError, match=rf"bydate.tar.{suffix} is truncated or damaged after \d+"):
        load_dataset("20news", tmp_path)


def test_too_few_posts_and_one_too_large_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(tmp_path / "20news/20news-bydate.tar.xz", posts())
    with pytest.raises(DataError, match="has 60 posts of the ten classes, not 9607"):
        load_dataset("20news", tmp_path)
    monkeypatch.setattr(news, "LARGEST", 1000)
    with pytest.raises(DataError, match="unpacks to more than 1,000 bytes"):
        load_dataset("20news", tmp_path)
    monkeypatch.setattr(news, "LARGEST_POST", 10)
    with pytest.raises(DataError, match="alt.atheism/0 has .* bytes, too many"):
        load_dataset("20news", tmp_path)
    with pytest.raises(ValueError, match="leaves no words"):
        news.tfidf(["the", "of"], min_df=0.5)


def test_features_must_match_the_posts(tmp_path: Path, few: None) -> None:
    write_archive(tmp_path / "20news/20news-bydate.tar.xz", posts())
    file = tmp_path / "f.npz"
    np.savez(file, features=np.random.default_rng(0).normal(size=(60, 3)))
    assert load_dataset("20news", tmp_path, features=str(file)).num_features == 3
    np.savez(file, features=np.zeros((59, 3)))
    with pytest.raises(DataError, match=r"f.npz has 59 rows of features, 20news 60 labels"):
        load_dataset("20news", tmp_path, features=str(file))
    np.savez(file, features=np.zeros((60, 3)), labels=np.zeros(60, dtype=np.int64))
    with pytest.raises(DataError, match="other labels than 20news in 54 of 60 rows"):
        load_dataset("20news", tmp_path, features=str(file))


class Evil:
    """A pickle of it runs code when it is read by the ordinary unpickler."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.witness),)


@pytest.mark.parametrize("name", ["20news-bydate_py3.pkz", "20news-bydate.pkz"])
def test_a_pickle_in_the_data_folder_is_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """scikit-learn keeps the posts so; whoever can write to the folder could have put it there."""
    witness = tmp_path / "witness"
    folder = tmp_path / "data" / "20news"
    folder.mkdir(parents=True)
    content = codecs.encode(pickle.dumps(Evil(witness)), "zlib_codec")
    for place in (folder, folder / "20news_home"):
        place.mkdir(exist_ok=True)
        (place / name).write_bytes(content)
    monkeypatch.setattr(news, "SOURCES", (offline_source(),))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DIFFORMER_DATA", raising=False)
    for attempt in (fetch_dataset, load_dataset):
        with pytest.raises(DataError, match="20news could not be fetched"):
            attempt("20news", tmp_path / "data")
    assert not witness.exists()


def offline_source() -> Source:
    return Source(Web("http://127.0.0.1:9"), "20news", {"20news-bydate.tar.gz": "0" * 64})


def test_posts_that_are_nowhere_are_fetched_as_an_archive(
    tmp_path: Path, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write_archive(tmp_path / "origin/20news-bydate.tar.gz", posts())
    checksum = hashlib.sha256(archive.read_bytes()).hexdigest()
    web = Web(archive.parent.as_uri(), names={"20news-bydate.tar.gz": archive.name})
    source = Source(web, "20news", {"20news-bydate.tar.gz": checksum})
    monkeypatch.setattr(news, "SOURCES", (source,))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DIFFORMER_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    fetched = load_dataset("20news")
    (tmp_path / "a/20news").mkdir(parents=True)
    archive.replace(tmp_path / "a/20news/20news-bydate.tar.gz")
    assert torch.equal(fetched.x.to_dense(), load_dataset("20news", tmp_path / "a").x.to_dense())
    assert torch.equal(fetched.x.to_dense(), load_dataset("20news").x.to_dense())  # from the cache
