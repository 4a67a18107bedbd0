"""Random valid messages between ranks, compared with a model of matching and data.

`message_generator` makes histories, `performer` performs a rank's part, `search` shrinks failing ones. Each
rank has the whole history and performs its own operations in order.
"""
