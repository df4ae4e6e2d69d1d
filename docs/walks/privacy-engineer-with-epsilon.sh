# A privacy engineer has ε, δ and the settings of a training, and no model. What do they mean for one person?

# ε and δ alone say little, and the answer says so.
remanence bound --epsilon 8 --delta 1e-5 --candidates 1000
#> 1000 times in 1000 at most
#> Here it says nothing.

# With the settings of the training it is another answer.
remanence bound --epsilon 8 --delta 1e-5 --dataset-size 60000 --batch-size 600 --epochs 10 --candidates 1000
#> 38.7 times in 1000 at most
#> a sampling rate of 0.01 and 1000 steps

# A person may have five records.
remanence bound --epsilon 8 --delta 1e-5 --dataset-size 60000 --batch-size 600 --epochs 10 --candidates 1000 --records-per-person 5
#> a person with at most 5 records

# How much noise would a limit of 20 in 1000 need?
remanence calibrate --max-success 0.02 --candidates 1000 --sample-rate 0.01 --steps 1000 --delta 1e-5
#> a noise multiplier of at least

# The same ε is another risk at another sampling rate.
remanence frontier --over sample-rate --epsilon 8 --steps 100 --candidates 10 --points 3
