"""Many nodes under one question: which are bad, which differ, which did not answer."""
