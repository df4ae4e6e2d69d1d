# The owner of a federation has an update that a client sent. Which of the client's samples are in it?

# Your own files go here: a function that makes the network, its weights, and the update.
python update_files.py

# The usual file: new weights minus old ones. Neither its scale nor its sign needs to be known. Exit code 1 is EXPOSED.
remanence update network.py:make --before before.safetensors --gradient update.safetensors --out update  # exits with 1
#> 8 of 8 samples are proven
#> Open it: remanence report update --open

# Or the weights before and after the round.
remanence update network.py:make --before before.safetensors --after after.safetensors --out round  # exits with 1
#> 8 of 8 samples are proven

# Nothing changed between the two.
remanence compare update round
#> Nothing got certainly worse.

# For an auditor, criterion by criterion.
remanence report update --format dossier
#> EDPB Opinion 28/2024

# What would protect the clients: noise, and how much of it.
remanence calibrate --max-success 0.05 --candidates 1000 --sample-rate 0.01 --steps 1000
#> a noise multiplier of at least
