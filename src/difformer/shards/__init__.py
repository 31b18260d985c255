"""A dataset on disk in parts, each small enough for one process: rows, and edges into them.

FOLDER/manifest.json         schema, counts, partition, each file's shape and checksum
FOLDER/part-00000/x.npy      (rows, features) float32
                  y.npy      labels, as in `Dataset`
                  split.npy  int8: 0, 1, 2 for train, val, test, -1 for a row in none of them
                  row.npy    int64: the number of each row in the table it came from
                  crow.npy   int64: where the edges that enter each row begin
                  col.npy    int32: the row that each edge comes from, among all rows; sorted
                  weight.npy float32: the weight of each edge, where edges have weights
                  ids.npy    int64, or the UTF-8 bytes of the ids and where each ends (id_ends.npy)

Rows are numbered from 0 through all parts, so a part is a range of rows. Each file is complete or
absent. The manifest is written last of all: a folder without it is not a dataset. A file that it
does not name, such as the part.json that earlier versions left, is never read.
"""
