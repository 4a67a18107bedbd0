"""Random valid histories of several processes' memory, compared with a model and shrunk when they fail.

A history is a list of symbolic operations. The `memory_model` defines which are legal and what memory must
contain after each. `generator` makes histories, `crew` performs them, `shrink` shortens failing ones.

The same for MPI, with a model of matching and data: `message_generator` makes histories of messages,
`message_performer` performs a rank's part, `message_search` shrinks failing ones. Each rank has the whole
history and performs its own operations in order.
"""
