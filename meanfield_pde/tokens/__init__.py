"""Particles: clouds of tokens, their files, and the reference particle code.

In come the positions of N tokens at the start, and an attention; out come their positions at later
times, in any dimension.
"""
