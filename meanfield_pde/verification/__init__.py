"""A particle code verified: do its tokens deviate from the density by more than chance allows?

In come a result and the tokens of a code; out come a verdict, what it rests on, and a cause.

    result, tokens ──► compare_tokens (comparison)
        │
        ├─ if tokens keep their numbers (numbering) and there is no noise, trajectories decide:
        │
        │    Trajectories (trajectories)   intervals; the mean defect of a code run on them
        │      1  the equation itself leaves no more than single precision does           right
        │      2  it does so with the steps of an honest method, or one of scipy's        right
        │      3  the first level of TABLE (hypotheses) that explains the tokens          its cause
        │      4  nothing does                                                            unknown
        │
        │    1 to 4 is `diagnose` (diagnosis). In 2 and 3 every hypothesis goes through the one
        │    `fit` (fitting): its numbers and the steps of its code (codes), by least squares;
        │    in all of them mean defects are compared, and nothing else.
        │
        ├─ one p-value for the initial tokens, or for all times where trajectories do not decide:
        │
        │    features of the tokens (statistic) ranked among those of samples of the density that a
        │    right code has moved (samples); what N tokens can tell at all (power_of_faults)
        │
        └──► TokenComparison (report): verdict in one line, table, JSON

With noise trajectories only say whether it was left out. `flow` holds the compiled sums over tokens
that all of these use. What else a code may do wrong is one more row of `hypotheses.TABLE`; the
numbers that decide are `trajectories.DiagnosisSettings`.
"""
