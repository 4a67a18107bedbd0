"""A site's settings and files: read, validated, and trusted or not."""
