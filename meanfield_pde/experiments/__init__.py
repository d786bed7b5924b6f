"""Complete runs: one case from its file to its folder, and studies of lifetimes and of beta.

In comes a case; out come a result folder with its figures, or a folder with a table, fits beside
the predictions, and figures. Measurements that are there already are not made again.
"""
