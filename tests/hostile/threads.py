"""Threads that share one frozen model: python threads.py RUN THREADS ANSWERS; one line of JSON."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from random import Random
from typing import Any

import torch
from fuzz_tables import make_rows

from difformer.jobs.own import OwnRun


def ask(run: Path, number: int, answers: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    loaded = OwnRun.load(run)
    columns = [column.name for column in loaded.encoder.columns]
    rows = [
        loaded.encoder.encode_chunk({name: [row[name]] for name in columns})
        for row in make_rows(40)
    ]
    right = [loaded.answer(row) for row in rows]
    wrong, start = [0] * number, threading.Barrier(number)

    def work(mine: int) -> None:
        draw = Random(mine)
        start.wait()
        for _ in range(answers // number):
            which = draw.randrange(len(rows))
            with torch.inference_mode() if draw.random() < 0.5 else torch.no_grad():
                wrong[mine] += loaded.answer(rows[which]) != right[which]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"threads": number, "answers": answers // number * number, "wrong": sum(wrong)}


if __name__ == "__main__":
    folder, many, asked = sys.argv[1:]
    print(json.dumps(ask(Path(folder), int(many), int(asked))))
