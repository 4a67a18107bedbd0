"""The role functions of the surveys: they run in workers, for what they ask may hang or crash."""
