"""The table of docs/registry.md: every endpoint succeeds, and fails with each of the codes in its row and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.registry.api import Answer, Api, record

PAGE = Path(__file__).parents[2] / "docs" / "registry.md"
V1, V2, INCOMPATIBLE = record("page"), record("page", optional=("site",)), record("page", "other")
INVALID = {"schema": '{"type": "nothing"}'}
OK = 200
BODY_MAX = 1024 * 1024
ROW = re.compile(r"^\| `(GET|POST|PUT|DELETE) ([^`]+)` \|.*\| ([\d, ]*)\|$", re.MULTILINE)


class Story:
    """Requests about one subject `s`, with versions 1 and 2, and what belongs to it."""

    def __init__(self, api: Api, subject: str) -> None:
        self.api = api
        self.s = subject
        self.first = api.register(subject, V1)
        api.register(subject, V2)

    def ask(self, request: str, body: Any = None) -> Answer:
        """`{s}`, `{id}` and `{guid}` are those of the subject and its first schema."""
        method, path = request.split(" ", 1)
        return self.api(method, path.format(s=self.s, id=self.first["id"], guid=self.first["guid"]), body)

    def after(self, *requests: str | tuple[str, Any]) -> Story:
        for each in requests:
            request, body = (each, None) if isinstance(each, str) else each
            answer = self.ask(request, body)
            assert answer.status == OK, answer.value
        return self

    @property
    def referenced(self) -> Story:
        """Another subject refers to version 2."""
        wrapper = {"type": "record", "name": "Wrapper", "fields": [{"name": "view", "type": "View"}]}
        reference = {"name": "View", "subject": self.s, "version": 2}
        return self.after(
            ("POST /subjects/{s}-user/versions", {"schema": json.dumps(wrapper), "references": [reference]})
        )

    @property
    def read_only(self) -> Story:
        return self.after(("PUT /mode/{s}", {"mode": "READONLY"}))

    def globally(self, mode: str, request: str, body: Any = None) -> Answer:
        """A request while the mode of all subjects is another."""
        self.after(("PUT /mode?force=true", {"mode": mode}))
        try:
            return self.ask(request, body)
        finally:
            self.after("DELETE /mode")


def just(request: str, body: Any = None, *, after: tuple[str | tuple[str, Any], ...] = ()) -> Callable[[Story], Answer]:
    return lambda story: story.after(*after).ask(request, body)


def read_only(request: str, body: Any = None) -> Callable[[Story], Answer]:
    return lambda story: story.read_only.ask(request, body)


def referenced(request: str) -> Callable[[Story], Answer]:
    return lambda story: story.referenced.ask(request)


def too_large(story: Story) -> Answer:
    """The body is within its limit; the record that is made of it, with subject and ids, is not."""
    schema = json.dumps({"type": "record", "name": "View", "fields": [], "doc": "x" * 990_000})
    body: dict[str, Any] = {"schema": schema, "metadata": {"properties": {"note": ""}}}
    body["metadata"]["properties"]["note"] = "x" * (BODY_MAX - len(json.dumps(body)))
    story.after(("PUT /config/{s}", {"compatibility": "NONE"}))
    return story.ask("POST /subjects/{s}/versions", body)


HIDDEN = "DELETE /subjects/{s}"
CONFIG, MODE = ("PUT /config/{s}", {"compatibility": "FULL"}), ("PUT /mode/{s}", {"mode": "READWRITE"})
CASES: dict[tuple[str, str], dict[int, Callable[[Story], Answer]]] = {
    ("GET", "/"): {OK: just("GET /")},
    ("GET", "/subjects"): {OK: just("GET /subjects?subjectPrefix={s}")},
    ("POST", "/subjects/{subject}"): {
        OK: just("POST /subjects/{s}", V1),
        40401: just("POST /subjects/{s}-none", V1),
        40403: just("POST /subjects/{s}", INCOMPATIBLE),
        42201: just("POST /subjects/{s}", INVALID),
    },
    ("DELETE", "/subjects/{subject}"): {
        OK: just("DELETE /subjects/{s}"),
        40401: just("DELETE /subjects/{s}-none"),
        40404: just(HIDDEN, after=(HIDDEN,)),
        40405: just("DELETE /subjects/{s}?permanent=true"),
        42205: read_only(HIDDEN),
        42206: referenced(HIDDEN),
    },
    ("GET", "/subjects/{subject}/metadata"): {
        OK: just(
            "GET /subjects/{s}/metadata?key=team&value=web",
            after=(("POST /subjects/{s}/versions", {**V2, "metadata": {"properties": {"team": "web"}}}),),
        ),
        40401: just("GET /subjects/{s}-none/metadata?key=team&value=web"),
        40403: just("GET /subjects/{s}/metadata?key=team&value=web"),
    },
    ("GET", "/subjects/{subject}/versions"): {
        OK: just("GET /subjects/{s}/versions"),
        40401: just("GET /subjects/{s}-none/versions"),
    },
    ("POST", "/subjects/{subject}/versions"): {
        OK: just("POST /subjects/{s}/versions", V1),
        409: just("POST /subjects/{s}/versions", INCOMPATIBLE),
        42201: just("POST /subjects/{s}/versions", INVALID),
        42205: read_only("POST /subjects/{s}/versions", record()),
        42208: just("POST /subjects/%00/versions", V1),
        42209: too_large,
    },
    ("GET", "/subjects/{subject}/versions/{version}"): {
        OK: just("GET /subjects/{s}/versions/latest"),
        40401: just("GET /subjects/{s}-none/versions/1"),
        40402: just("GET /subjects/{s}/versions/9"),
        42202: just("GET /subjects/{s}/versions/first"),
    },
    ("DELETE", "/subjects/{subject}/versions/{version}"): {
        OK: just("DELETE /subjects/{s}/versions/1"),
        40401: just("DELETE /subjects/{s}-none/versions/1"),
        40402: just("DELETE /subjects/{s}/versions/9"),
        40406: just("DELETE /subjects/{s}/versions/1", after=("DELETE /subjects/{s}/versions/1",)),
        40407: just("DELETE /subjects/{s}/versions/1?permanent=true"),
        42202: just("DELETE /subjects/{s}/versions/first"),
        42205: read_only("DELETE /subjects/{s}/versions/1"),
        42206: referenced("DELETE /subjects/{s}/versions/2"),
    },
    ("GET", "/subjects/{subject}/versions/{version}/schema"): {
        OK: just("GET /subjects/{s}/versions/1/schema"),
        40401: just("GET /subjects/{s}-none/versions/1/schema"),
        40402: just("GET /subjects/{s}/versions/9/schema"),
        42202: just("GET /subjects/{s}/versions/first/schema"),
    },
    ("GET", "/subjects/{subject}/versions/{version}/referencedby"): {
        OK: referenced("GET /subjects/{s}/versions/2/referencedby"),
        40401: just("GET /subjects/{s}-none/versions/1/referencedby"),
        40402: just("GET /subjects/{s}/versions/9/referencedby"),
        42202: just("GET /subjects/{s}/versions/first/referencedby"),
    },
    ("GET", "/schemas"): {OK: just("GET /schemas?subjectPrefix={s}&latestOnly=true")},
    ("GET", "/schemas/types"): {OK: just("GET /schemas/types")},
    ("GET", "/schemas/ids/{id}"): {OK: just("GET /schemas/ids/{id}"), 40403: just("GET /schemas/ids/99999999")},
    ("GET", "/schemas/ids/{id}/schema"): {
        OK: just("GET /schemas/ids/{id}/schema"),
        40403: just("GET /schemas/ids/99999999/schema"),
    },
    ("GET", "/schemas/ids/{id}/subjects"): {
        OK: just("GET /schemas/ids/{id}/subjects"),
        40403: just("GET /schemas/ids/99999999/subjects"),
    },
    ("GET", "/schemas/ids/{id}/versions"): {
        OK: just("GET /schemas/ids/{id}/versions"),
        40403: just("GET /schemas/ids/99999999/versions"),
    },
    ("GET", "/schemas/guids/{guid}"): {
        OK: just("GET /schemas/guids/{guid}"),
        40403: just("GET /schemas/guids/00000000-0000-0000-0000-000000000000"),
    },
    ("GET", "/schemas/guids/{guid}/ids"): {
        OK: just("GET /schemas/guids/{guid}/ids"),
        40403: just("GET /schemas/guids/00000000-0000-0000-0000-000000000000/ids"),
    },
    ("POST", "/compatibility/subjects/{subject}/versions"): {
        OK: just("POST /compatibility/subjects/{s}/versions", INCOMPATIBLE),
        42201: just("POST /compatibility/subjects/{s}/versions", INVALID),
    },
    ("POST", "/compatibility/subjects/{subject}/versions/{version}"): {
        OK: just("POST /compatibility/subjects/{s}/versions/1", INCOMPATIBLE),
        40401: just("POST /compatibility/subjects/{s}-none/versions/1", V1),
        40402: just("POST /compatibility/subjects/{s}/versions/9", V1),
        42201: just("POST /compatibility/subjects/{s}/versions/1", INVALID),
        42202: just("POST /compatibility/subjects/{s}/versions/first", V1),
    },
    ("GET", "/config"): {OK: just("GET /config")},
    ("PUT", "/config"): {
        OK: just("PUT /config", {"compatibility": "BACKWARD"}),
        42203: just("PUT /config", {"compatibility": "SIDEWAYS"}),
        42205: lambda story: story.globally("READONLY", "PUT /config", {"compatibility": "FULL"}),
    },
    ("DELETE", "/config"): {
        OK: just("DELETE /config"),
        42205: lambda story: story.globally("READONLY", "DELETE /config"),
    },
    ("GET", "/config/{subject}"): {OK: just("GET /config/{s}", after=(CONFIG,)), 40408: just("GET /config/{s}")},
    ("PUT", "/config/{subject}"): {
        OK: just(*CONFIG),
        42203: just("PUT /config/{s}", {"compatibility": "SIDEWAYS"}),
        42205: read_only(*CONFIG),
    },
    ("DELETE", "/config/{subject}"): {
        OK: just("DELETE /config/{s}", after=(CONFIG,)),
        40408: just("DELETE /config/{s}"),
        42205: read_only("DELETE /config/{s}"),
    },
    ("GET", "/mode"): {OK: just("GET /mode")},
    ("PUT", "/mode"): {
        OK: just("PUT /mode", {"mode": "READWRITE"}),
        42204: just("PUT /mode", {"mode": "SOMETIMES"}),
        42205: just("PUT /mode", {"mode": "IMPORT"}),
    },
    ("DELETE", "/mode"): {OK: just("DELETE /mode", after=(("PUT /mode", {"mode": "READWRITE"}),))},
    ("GET", "/mode/{subject}"): {OK: just("GET /mode/{s}", after=(MODE,)), 40409: just("GET /mode/{s}")},
    ("PUT", "/mode/{subject}"): {
        OK: just(*MODE),
        42204: just("PUT /mode/{s}", {"mode": "SOMETIMES"}),
        42205: just("PUT /mode/{s}", {"mode": "IMPORT"}),
    },
    ("DELETE", "/mode/{subject}"): {
        OK: just("DELETE /mode/{s}", after=(MODE,)),
        40409: just("DELETE /mode/{s}"),
    },
    ("GET", "/contexts"): {OK: just("GET /contexts")},
    ("DELETE", "/contexts/{context}"): {
        OK: just(
            "DELETE /contexts/.{s}",
            after=(
                ("POST /subjects/:.{s}:v/versions", V1),
                "DELETE /subjects/:.{s}:v",
                "DELETE /subjects/:.{s}:v?permanent=true",
            ),
        ),
        40401: just("DELETE /contexts/.{s}-none"),
        42205: just("DELETE /contexts/."),
        42211: just("DELETE /contexts/.{s}", after=(("POST /subjects/:.{s}:v/versions", V1),)),
    },
    ("GET", "/v1/metadata/id"): {OK: just("GET /v1/metadata/id")},
    ("GET", "/v1/metadata/version"): {OK: just("GET /v1/metadata/version")},
    ("GET", "/v1/metadata/leader"): {OK: just("GET /v1/metadata/leader")},
}  # fmt: skip


def documented() -> dict[tuple[str, str], set[int]]:
    return {
        (method, path): {int(code) for code in codes.split(",") if code.strip()}
        for method, path, codes in ROW.findall(PAGE.read_text())
    }


def test_the_cases_are_those_of_the_table() -> None:
    assert {endpoint: set(cases) - {OK} for endpoint, cases in CASES.items()} == documented()


@pytest.mark.parametrize("endpoint", CASES, ids=" ".join)
def test_an_endpoint_succeeds_and_fails_as_its_row_says(api: Api, subject: str, endpoint: tuple[str, str]) -> None:
    for number, (code, ask) in enumerate(CASES[endpoint].items()):
        answer = ask(Story(api, f"{subject}-{number}"))
        found = answer.status if answer.status == OK else answer.error
        assert found == code, answer.value
