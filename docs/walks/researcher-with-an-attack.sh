# A researcher has a new attack, in a file. Does it beat the known ones, under the same game?

# What there is to compare with.
remanence attacks
#> retrain-and-compare

# The new attack, in a game of your own. Exit code 1 is EXPOSED.
remanence audit my_game.py:factory --attack my_attack.py:Correlate --trials 300 --max-success 0.5 --out new  # exits with 1
#> correlate

# The known attack, in the same game.
remanence audit my_game.py:factory --attack retrain-and-compare --trials 300 --max-success 0.5 --out known  # exits with 1
#> retrain-and-compare

# Both at once: all intervals hold together, so that trying many attacks does not buy a verdict.
remanence audit my_game.py:factory --attack my_attack.py:Correlate --attack retrain-and-compare --trials 300 --max-success 0.5 --out both  # exits with 1
#> Proven: no attack exceeds

# What changed. Nothing got worse: an attack that is run for the first time is no change of the model.
remanence compare known both
#> newly run

# The page, with true against false positives.
remanence report both
#> Report: both/report.html
