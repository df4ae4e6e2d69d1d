# An engineer is about to publish a head that was fine-tuned on a few pictures. Which of them can be drawn again?

# Your own files go here: pictures in folders, a backbone, and the head.
python head_files.py

# A first answer, by the fast attack. Leave --quick out for the strong one. Exit code 1 is EXPOSED.
remanence head head.safetensors --backbone backbone.py:load --images mine --public public --size 8 --normalise 0.5/0.5 --epochs 60 --learning-rate 0.5 --max-success 0.3 --quick --out run  # exits with 1
#> EXPOSED  head.safetensors
#> From this very head, a picture of 5 of its 5 classes came back.
#> your limit is 300
#> digit-0/000.png

# The result again, later. The exit code is that of the verdict.
remanence show run  # exits with 1
#> EXPOSED  head.safetensors

# It was not edited since.
remanence verify run
#> Verified: 1 of 1 attacks were counted again from their trials

# A section for the model card.
remanence report run --format model-card
#> verdict: "EXPOSED"

# The page to sign.
remanence report run
#> Report: run/report.html
