"""A site's settings and files: how they are read, validated and trusted."""
