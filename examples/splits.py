"""Draw splits by short names, print them, save one and read it again."""

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
