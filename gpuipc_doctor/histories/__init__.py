"""Random legal histories of several processes' memory, held against a model and shrunk to the shortest.

A history is a list of symbolic operations. The `model` says which are legal and what memory must show after
each; the `generator` makes them, `crew` has processes perform them, and `shrink` shortens what fails.
"""
