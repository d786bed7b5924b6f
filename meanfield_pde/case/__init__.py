"""What the user says: a case, its file, and its text with every default spelled out.

In comes a TOML file; out comes a checked `Case`, and the text that stands for it.
"""
