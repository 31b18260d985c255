"""What the page makes of its blocks."""

from __future__ import annotations

from difformer.blocks import Section, Table
from difformer.report.page import render_page


def test_columns_of_words_begin_at_the_left_and_numbers_end_at_the_right() -> None:
    rows = [("GCN", "Cora, 140 labels", "81.5"), ("MLP", "digits", "cannot run"), ("a", "–", "1")]
    table = Table("figures", ("Method", "Data", "Accuracy"), rows)
    assert table.texts == [True, True, False]
    counted = [("a", "5 columns", "0.5 to 0.9", "–"), ("b", "–", "57 %", "word")]
    assert Table("", tuple("abcd"), counted).texts == [True, True, False, True]
    page = render_page("a page", [Section("a", "A section", [table])])
    assert '<td class="text">Cora, 140 labels</td><td>81.5</td>' in page
    assert '<th scope="col" class="text">Data</th><th scope="col">Accuracy</th>' in page
