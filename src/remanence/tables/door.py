"""Tables and the models that were fitted on them."""

from remanence.core.doors import Door

DOOR = Door(
    "tables",
    commands=("remanence.tables.command:table",),
    attacks=(
        "remanence.tables.glm.closed_form:ClosedForm",
        "remanence.tables.attacks:StoredInObject",
        "remanence.tables.attacks:PublishedStatistics",
        "remanence.tables.attacks:PipelineEquations",
        "remanence.tables.attacks:TreeLeaves",
        "remanence.tables.attacks:WholeObject",
    ),
    targets=(
        "remanence.tables.targets:breast_cancer_logistic",
        "remanence.tables.targets:breast_cancer_sloppy",
        "remanence.tables.targets:digits_logistic",
        "remanence.tables.targets:diabetes_ridge",
        "remanence.tables.targets:wine_pipeline",
        "remanence.tables.targets:diabetes_shortlist",
    ),
    caveats="remanence.tables.caveats",
    files=dict.fromkeys(
        (".skops", ".pkl", ".pickle", ".joblib"), "table {} --data train.csv --label outcome"
    ),
    findings={"columns": "remanence.tables.single_columns:Columns"},
    moved=dict.fromkeys(
        ("audit --data", "audit --table"), "remanence table model.skops --data train.csv --label outcome"
    )
    | dict.fromkeys(
        ("audit --noise", "audit --range"),
        "remanence audit file.py:factory, with a game around NoisySum: published sums in a file are not read",
    )
    | {
        "table --prior": "remanence table without it: the guess from the other rows knows more than a public table",
        "table --fixed-totals": "--known columns:arm, for a column that a design fixes: it is not asked for",
    },
)
