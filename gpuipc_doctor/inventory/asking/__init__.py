"""Role functions of the surveys, which run in workers because their queries may hang or crash."""
