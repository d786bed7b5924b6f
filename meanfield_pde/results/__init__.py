"""What is kept: the result folder and its tables, checkpoints, ParaView files, progress.

In comes a simulation as it runs; out come files, replaced whole, that `read_result` reads back.
"""
