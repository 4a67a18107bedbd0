"""Random valid histories of several processes' memory, compared with a model and shrunk when they fail.

A history is a list of symbolic operations. The `memory_model` defines which are legal and what memory must
contain after each. `generator` makes histories, `crew` performs them, `shrink` shortens failing ones.
"""
