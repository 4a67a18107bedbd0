"""Random valid histories of several processes' memory, compared with a model and shrunk when they fail.

A history is a list of symbolic operations. Each kind of operation is one class of `memory_operations`: when
it is legal, what it changes in the `memory_state`, how its process performs it, its sentence, its C
statements.
`generator` makes histories of `composed_cases` and of random phases; `case_processes` performs them, `shrink`
shortens failing ones.

The same for MPI, with the classes of `message_operations`: `message_generator` makes histories of messages,
`message_performer` performs a rank's part, `message_search` shrinks failing ones. Each rank has the whole
history and performs its own operations in order.
"""
