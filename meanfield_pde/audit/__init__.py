"""A trained encoder, audited: what its weights predict, and whether its tokens do so.

In come weights (an `.npz`, or a BERT-class `.safetensors` file or folder) and, if there are any,
the tokens of each layer as they were measured. Out go, for each head, the subspace onto which it
concentrates tokens, how fast, for how long and what ends it; for each layer, whether its tokens
deviate; and a head cut down to two or three directions, as a case whose density can be run.
"""

# A cloud that moves by less than this, in radians, has stopped: half a degree (chosen, not tuned).
TOLERANCE = 0.01
