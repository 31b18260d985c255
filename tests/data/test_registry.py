from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch

from difformer.data import registry
from difformer.data.registry import DATASETS, fetch_dataset, list_datasets, load_dataset, load_raw

INSIDE = ("digits", "cora", "citeseer", "pubmed")


def test_what_is_said_to_have_images_or_texts_can_load_them() -> None:
    for name in list_datasets():
        family = import_module(DATASETS[name].module)
        assert DATASETS[name].summary
        assert callable(family.load)
        assert hasattr(family, "load_raw") == (DATASETS[name].raw is not None)
    with pytest.raises(ValueError, match="dataset must be one of digits.* not 'cora'"):
        load_raw("cora")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="dataset must be one of digits, cora.* not 'corra'"):
        load_dataset("corra")
    with pytest.raises(ValueError, match="not 'corra'"):
        fetch_dataset("corra")


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="digits takes no option 'normalise'; its options: none"):
        load_dataset("digits", normalise=False)
    with pytest.raises(ValueError, match="cora takes no option 'normalise'; .*: normalize"):
        load_dataset("cora", normalise=False)


def test_a_new_family_is_one_module_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        DATASETS, "digits-again", registry.Entry("difformer.data.digits", "the digits")
    )
    assert load_dataset("digits-again").name == "digits-again"


@pytest.mark.parametrize("name", [name for name in list_datasets() if name not in INSIDE])
def test_every_dataset_loads_from_real_files(name: str, data_root: Path) -> None:
    family = import_module(DATASETS[name].module)
    if not hasattr(family, "sources"):
        pytest.skip(f"{name} states no files of its own")
    sources = family.sources(name)
    if all(source.missing(data_root) for source in sources):
        pytest.skip(f"{name} is not in {data_root}")
    data = load_dataset(name, data_root)
    assert data.name == name
    assert data.source


def test_digits_are_whole_and_scaled() -> None:
    data = load_dataset("digits")
    assert tuple(data.x.shape) == (1797, 64)
    assert data.y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert data.x.dtype == torch.float32
    assert data.x.abs().max() <= 1
    assert data.x.mean(dim=0).abs().max() < 1e-5
    assert data.edge_index is None


def test_the_images_of_digits_are_dark_where_the_pixels_are_high() -> None:
    data, images = load_dataset("digits"), load_raw("digits")
    assert images.pixels.shape == (1797, 3, 8, 8)
    assert images.y.equal(data.y)
    dark = 255 - images.pixels[:, 0].flatten(1).float()
    torch.testing.assert_close(dark / 255 - (dark / 255).mean(0), data.x, atol=5e-3, rtol=0)
