# An engineer trains with Opacus. Did the training that ran keep what its accountant promises?

# Your own training goes here: the loop stays as it is, inside `with record(...)`.
python recorded_run.py

# Every step was replayed, so a proof caps every attack. Exit code 0 is PROTECTED.
remanence run recording --max-success 0.4 --out private
#> PROTECTED recording
#> Proven: no attack exceeds 288 in 1000 for one record.

# Counts, intervals, ceiling and verdict follow from one another.
remanence verify private
#> 1 of 1 ceilings too, and PROTECTED follows

# A stricter limit is not met, and the answer is not a promise.
remanence run recording --max-success 0.25 --out strict  # exits with 3
#> UNPROVEN recording

# How much noise would meet it?
remanence calibrate --max-success 0.25 --candidates 5 --sample-rate 0.0909 --steps 33 --delta 1e-5
#> a noise multiplier of at least

# For an auditor, criterion by criterion.
remanence report private --format dossier
#> NIST SP 800-226
