"""The start: initial densities, their masses in cells and tokens drawn from them.

In: the [initial] table of a case file, or an object, a formula, a function or an array in a script.
Out: the masses of the cells, tokens, and the density before any mesh for the push-forward. Each
kind is one class in one module, listed in `kinds`.
"""
