"""The record of a run: its saved times, the densities at them, and a row of numbers for each.

In come the masses at a saved time, one time after the other; out comes any of them, read one at a
time from memory or from a file.
"""
