"""Fit a table with few labels, predict known and new rows, and save the model."""

import numpy as np
from sklearn.datasets import load_digits

from difformer import DIFFormerClassifier

X, y = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(y))
known, new = order[:1500], order[1500:]
few = y[known].copy()
few[100:] = -1  # a hundred labels; -1 is unlabelled

model = DIFFormerClassifier(graph="knn", epochs=60, random_state=0)
model.fit(X[known], few)
print("rows of fit:", (model.transduction_ == y[known])[100:].mean().round(3))
print("new rows:   ", (model.predict(X[new]) == y[new]).mean().round(3))

weights, rows = model.influence(X[new[:3]], top_k=5)
for label, near in zip(y[new[:3]], y[known][rows], strict=True):
    print(f"the rows with most influence on a {label} have the classes", *near)

model.save("digits.safetensors")
again = DIFFormerClassifier.load("digits.safetensors")
assert np.array_equal(again.predict_proba(X[new]), model.predict_proba(X[new]))
