"""difformer demo: few labels, a table and a page, in about a minute."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from difformer.app import options as shared
from difformer.app.options import option
from difformer.app.output import interrupted, print_json, print_table, say
from difformer.blocks import Table
from difformer_paper.demo import ABOUT, HEADER, run_demo


def command(
    out: Annotated[
        Path, shared.out("FOLDER", "Where the runs are kept.", default="runs/demo")
    ] = Path("runs/demo"),
    picture: Annotated[
        Path | None,
        option("--picture", metavar="FILE", help="Also draw states and energy to this svg or png."),
    ] = None,
    json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """See DIFFormer learn from few labels, in about a minute.

    Example: difformer demo

    Trains GCN and both forms of DIFFormer on Cora and shows the published figures and our means
    over five seeds beside them; then trains DIFFormerClassifier and methods of scikit-learn on
    handwritten digits, which have no graph. Needs no network. Writes report.html, with the states
    before and after diffusion and the energy of each layer, and one folder per run on Cora.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder, {out} is a file")
    if picture is not None and picture.suffix not in (".svg", ".png"):
        raise ValueError(f"--picture must end in .svg or .png, not {picture.name}")
    begin = time.monotonic()
    try:
        rows, page = run_demo(
            out,
            picture=picture,
            quiet=quiet or json,
            tell=lambda message: say(message, quiet=quiet or json),
        )
    except KeyboardInterrupt:
        raise interrupted(
            f"what was trained is kept in {out}; the same command resumes it"
        ) from None
    taken = time.monotonic() - begin
    if json:
        print_json({"rows": [vars(row) for row in rows], "seconds": taken, "page": page})
        return
    print_table(Table("", HEADER, [row.cells() for row in rows]), "Few labels, and all the rows")
    print(f"{ABOUT}\n{taken:.0f} s in all. Open {page} in a browser.\n\nNext:")
    print("  difformer train cora --seeds 5      your own settings: --help shows every option")
    print("  difformer datasets                  what else there is")
    print("  difformer reproduce table2 --show   the published figures, and ours")
