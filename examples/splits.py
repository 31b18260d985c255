"""A split is data: draw it by a short name, print it, save it, and get the same rows back."""

from pathlib import Path

import difformer

data = difformer.load_dataset("digits")
print(data.describe())

for spec in ("random:0", "random:1", "ratio:0.5/0.25/0.25:7"):
    print(data.split(spec).describe())

split = data.split("random:0")
split.save("split.json")
assert data.split("split.json") == split
print("saved to", Path("split.json").resolve().name)
