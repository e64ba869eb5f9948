"""Requests made up from the server's own OpenAPI document: none of them is an error of the server."""

from importlib import import_module

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from tests.serve.conftest import LETTERS
from tests.serve.serving import NAME, PATIENCE

CHECKS = (not_a_server_error, content_type_conformance, response_schema_conformance)

# pytest parses the modules of its plugins when they are first imported, and `ast.parse` of CPython 3.11 fails when
# another thread is in it: what would be imported at first use, with a server's thread running, is imported here.
import_module("anyio._backends._asyncio")
schemathesis.openapi.from_dict({"openapi": "3.1.0", "info": {"title": "", "version": ""}, "paths": {}})


def test_made_up_requests_are_answered_or_refused_as_the_document_says(server):
    """Half of them are bad on purpose. Those that are good are made small, so that they end."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    statuses = []

    def ask(case):
        if isinstance(case.body, dict):
            shrink(case.body)
        response = case.call(timeout=PATIENCE)
        case.validate_response(response, checks=CHECKS)
        statuses.append(response.status_code)

    for operation in schema.get_all_operations():
        made = operation.ok().as_strategy()
        run = settings(
            max_examples=25,
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        run(given(case=made)(ask))()
    assert statuses.count(200) > 20
    assert statuses.count(400) > 20
    assert set(statuses) <= {200, 400, 404, 413, 429}


def shrink(body):
    """The model's name, and a small answer; all else stays as it was made up."""
    if "model" in body and len(str(body["model"])) % 3:
        body["model"] = NAME
    for name in ("max_tokens", "max_completion_tokens"):
        if isinstance(body.get(name), int):
            body[name] = min(body[name], 4)
    if isinstance(body.get("n"), int):
        body["n"] = min(body["n"], 3)
    body.setdefault("max_tokens", 3)
    if isinstance(body.get("prompt"), list) and body["prompt"] and all(type(one) is int for one in body["prompt"]):
        body["prompt"] = [one % (LETTERS + 1) for one in body["prompt"]]
