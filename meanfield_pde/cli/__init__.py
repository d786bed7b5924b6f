"""The command line: commands, their options, PETSc's options, exit codes.

In come arguments; out come calls of the Python API, messages, and one line for an error.
"""
