"""The equation solved: velocity, transport, steps in time, and what each saved time is asked.

In come an attention, a mesh and an initial density; out come the masses of the cells at the saved
times, and a row of numbers for each: mass, extremes, moments, energy, distances.
"""
