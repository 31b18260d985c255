"""Train on a user's own table and predict new rows of it: the estimator, and a run folder.

`table` names the files that a run reads, `train` makes a run folder, `scores` has its metrics,
`peers` those of simple systems, `importance` those without a column, `run` answers from the folder
and `predict` for a file of new rows. The folder holds:

config.toml            what was asked for; a resumed run must ask for the same
fits                   the fits under way, to be resumed; removed once the run has finished
estimator.safetensors  the fitted estimator: weights, how columns are encoded, what is frozen, ids
split.json             the rows that trained and validated
metrics.csv            one row per epoch
held_out.csv           labelled rows that were held out: the true label and the predicted one
predictions.csv        the rows whose label was empty: label, probabilities, influential rows
result.json            metrics and cost; written last, so a folder without it is not finished
"""
