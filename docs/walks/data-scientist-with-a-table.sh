# A data scientist is about to share a random forest that was fitted on a table. Which columns and rows come back?

# Your own files go here: the table, and the model as .skops or as a function that returns it.
python table_files.py

# Each row in turn is the one that the adversary lacks. Exit code 1 is EXPOSED.
remanence table model.py:load --data train.csv --label outcome --max-success 0.7 --out forest  # exits with 1
#> EXPOSED model.py:load
#> The column outcome came back in 569 of 569 records; a guess finds it 630 times in 1000.
#> your limit is 700

# Without the other rows we know no attack on a forest, so there is no verdict: exit code 2.
remanence table model.py:load --data train.csv --label outcome --known none --out alone  # exits with 2

# The result again, later. Which columns, and how often by a guess?
remanence report forest --format markdown
#> | outcome | 569 of 569

# A page for the privacy officer, with their words on it.
remanence report forest --title "Outcome of tumours" --owner "Clinic" --purpose "triage" --data-description "569 patients"
#> Report: forest/report.html
