"""Reasons not to trust an audit of tables and fitted models, each with its meaning and its cure."""

from remanence.results.caveats import Caveat

INACTIVE_FEATURES = Caveat(
    "inactive-features",
    "an L1 penalty has set some coefficients to zero.",
    "At a zero coefficient, the optimality condition only bounds the feature. So records are compared on the "
    "features that the model uses.",
    "Read the result as one about these features, not about the whole record.",
)
DUPLICATE_RECORDS = Caveat(
    "duplicate-records",
    "some records of the table are equal in every column but the label, or in all.",
    "An adversary who knows the other records already knows this one's twin, so recovering it says less.",
    "Compare the rate with the number of twins. Remove duplicates that are mistakes.",
)
PART_NOT_CONFIRMED = Caveat(
    "part-not-confirmed",
    "the training of some part of the model cannot be repeated: it is random, or behind a TargetEncoder.",
    "Whether that part was fitted on this table could not be tested. Nothing that it holds was used.",
    "Fit it with a fixed random_state.",
)
TABLE_NOT_EXACT = Caveat(
    "table-not-exact",
    "fitting the model again on this table gives nearly, but not exactly, the same numbers.",
    "The table was probably rounded when it was written. Attacks that subtract and solve need all digits: rows that "
    "they miss here may come back to an adversary who has the table itself.",
    "Hand in the table as it was passed to fit(): Parquet, or a CSV file with all digits.",
)
COLUMNS_NOT_READ = Caveat(
    "columns-not-read",
    "the model drops some columns of the table before any part of it sees them.",
    "Some columns never reach the model, so no number in it depends on them. Rows are compared on the others.",
    "Read the result as one about these columns. Leave the others out of the table.",
)
PART_NOT_READ = Caveat(
    "part-not-read",
    "some part of the model was fitted on the table, but nothing in it is read here.",
    "Part of the model was examined, but no attack here reads it. Another attack may, so this is not protection.",
    "Treat the data that this part was fitted on as unprotected. In Python, `shortlist_game` compares retrained "
    "models.",
)
