"""What is seen: figures and animations of densities, distances, tokens and experiments.

In come results and what was concluded from them; out come PNG and GIF files.
"""
