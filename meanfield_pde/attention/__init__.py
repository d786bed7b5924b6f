"""What drives the density: the matrices of a head, its layers, and the attention sum.

In come query, key, value and beta, points and their masses; out come softmax means and velocities,
within a tolerance that is a bound. `head` is one head, `layers` lets it change with time, and
`sum` computes what takes nearly all of the time.
"""
