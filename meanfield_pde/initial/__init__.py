"""The start: initial densities, the masses they put into cells, and tokens drawn from them.

In come a kind of density with its numbers, a formula, or a file of tokens; out come probability
masses of the cells, or N independent tokens.
"""
