"""What a site has decided, and the files in which it says so: read, checked, and trusted or not."""
