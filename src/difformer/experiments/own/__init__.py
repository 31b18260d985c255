"""Train on a user's own table and predict new rows of it: a run folder each way.

`train` makes a run folder, `run` answers from it, `predict` fills a file for new rows, and `opened`
looks inside. The folder holds:

config.toml            what was asked for; a resumed run must ask for the same
fits                   where each fit stands, to go on from; gone once the run has finished
table.json             how each column becomes numbers, and the ids of the known rows
estimator.safetensors  the fitted estimator: weights and what is frozen
split.json             the rows that trained and validated
metrics.csv            a row an epoch
predictions.csv        the rows whose label was empty: label, probability, influential rows
result.json            metrics and cost, written last: a folder without it is not a finished run
"""
