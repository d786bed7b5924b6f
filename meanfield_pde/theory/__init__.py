"""What is predicted: the limit, rates and lifetimes from the spectrum; phases, fits and bounds.

In come an attention, and for phases, fits and bounds the numbers of a history; out come the
dominant eigenspace, the limit measure, its rates and times, and what a history says about them.
"""
