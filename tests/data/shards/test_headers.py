"""Tables and edges without a header become the same parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.shards.test_prepare import given, make


@pytest.mark.parametrize("names", ["text", "whole"])
@pytest.mark.parametrize("header", [True, False])
def test_files_without_a_header_give_the_same_parts(
    tmp_path: Path, names: str, header: bool
) -> None:
    """Edges are found to have none; of tables it is said, and their columns have other names."""
    settings = given(tmp_path, "csv", names, weighted=True)
    calm = make(tmp_path / "calm", **settings)
    for (path,) in (settings["edges"], *([] if header else [settings["nodes"]])):
        text = Path(path).read_text()
        Path(path).write_text(text.partition("\n")[2])
    if header:
        with pytest.warns(UserWarning, match=r"edges\.csv: has no header"):
            assert make(tmp_path / "out", **settings) == calm
        return
    settings |= {"label": ["column6"], "id": "column1", "header": False}
    found = make(tmp_path / "out", **settings)
    assert [part.files for part in found.parts] == [part.files for part in calm.parts]
