"""Train on a user's own table and predict new rows of it: the estimator, and a run folder.

`table` says which files a run reads, `train` makes a run folder, `scores` says how good it is,
`run` answers from it, `predict` fills a file for new rows. The folder holds:

config.toml            what was asked for; a resumed run must ask for the same
fits                   the fits under way, to be resumed; removed once the run has finished
estimator.safetensors  the fitted estimator: weights, how columns are encoded, what is frozen, ids
split.json             the rows that trained and validated
metrics.csv            one row per epoch
held_out.csv           labelled rows whose label a model did not see: the truth and its answer
predictions.csv        the rows whose label was empty: label, probabilities, influential rows
result.json            metrics and cost, written last: a folder without it is not a finished run
"""
