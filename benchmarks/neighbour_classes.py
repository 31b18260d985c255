"""How often the nearest rows by features have the same class, compared with the graph.

python -m benchmarks.neighbour_classes      writes results/benchmarks/neighbour_classes.json
"""

from __future__ import annotations

from benchmarks.measure import write_results
from difformer import load_dataset
from difformer.data.neighbours import nearest_neighbours

DATASETS, SIZES = ("cora", "citeseer", "pubmed"), (5, 20)


def shares(name: str) -> dict[str, float]:
    """The share of edges whose ends are of one class, of each graph."""
    data = load_dataset(name)
    graphs = {f"{k} nearest": nearest_neighbours(data.x, k, metric="cosine") for k in SIZES}
    assert data.edge_index is not None
    graphs["own edges"] = data.edge_index
    return {
        title: float((data.y[edges[0]] == data.y[edges[1]]).float().mean())
        for title, edges in graphs.items()
    }


if __name__ == "__main__":
    results = {name: shares(name) for name in DATASETS}
    print(results)
    write_results("neighbour_classes", results)
