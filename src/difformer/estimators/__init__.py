"""scikit-learn estimators: three lines from a table with few labels to predictions."""
