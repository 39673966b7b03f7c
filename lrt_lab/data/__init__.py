"""Text: corpora, their split by whole file, their token chunks and the batches read from them.

`corpora` and `cards` need neither torch nor litdata; only `chunks` and `text` import them.
"""
