"""A particle code verified: do its tokens deviate from the density by more than chance allows?

In come a result and the tokens of a code; out come a verdict, what it rests on, and a cause.
"""
