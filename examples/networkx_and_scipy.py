"""Pass a graph to an estimator: a NetworkX graph, a SciPy matrix or an array of edges."""

import networkx as nx
import numpy as np

import difformer

graph = nx.karate_club_graph()
club = np.array([graph.nodes[i]["club"] == "Officer" for i in graph]).astype(int)
known = np.full(len(club), -1)
known[[0, 33]] = club[[0, 33]]  # the two leaders
X = np.eye(len(club))  # there are no features, so each member gets a column

edges = np.array(graph.edges).T
answers: list[np.ndarray] = []
for given in (graph, nx.to_scipy_sparse_array(graph, format="csr"), edges):
    model = difformer.DIFFormerClassifier(epochs=60, random_state=0).fit(X, known, graph=given)
    answers.append(model.transduction_)
    print(f"{type(given).__name__}: {(model.transduction_ == club).mean():.2f} right")
assert np.array_equal(answers[0], answers[1])  # the list alone has no weights
