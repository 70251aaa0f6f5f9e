"""What the page says, before any script runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from dlbricks.analyzer.findings.finding import Finding
from dlbricks.analyzer.report.page.page import _environment, render_page
from dlbricks.analyzer.report.units import milliseconds
from dlbricks.constructor.result import Term
from dlbricks.db import Store
from dlbricks.db.values import Kernel, KernelView
from markupsafe import Markup

from ..conftest import Reported


class Page(HTMLParser):
    """Elements with their attributes, and the text of the page without scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in {"script", "style"}:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_page_loads_nothing(reported: Reported) -> None:
    page = reported.page()

    links = [attrs.get("src") or attrs.get("href") or "" for _, attrs in Page(page).elements]
    assert all(link.startswith("#") or link in {"", "data:,"} for link in links)
    assert "default-src 'none'" in page
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest", page)


def test_the_first_sentence_says_where_the_time_goes(reported: Reported) -> None:
    section = reported.sections[0]
    by_operator: dict[str, float] = {}
    for part in section.estimate.parts.sequences:
        by_operator[part.op_types[0]] = by_operator.get(part.op_types[0], 0.0) + (part.latency_ms or 0.0)
    first = max(by_operator, key=by_operator.__getitem__)

    text = Page(reported.page("branches")).text

    measured = section.estimate.truth.ms
    assert measured is not None
    assert text.index("One inference takes") < text.index("Savings:") < text.index("Measured")
    assert f"One inference takes {milliseconds(measured)} ±" in text
    assert f"of type {first}" in text


def test_the_page_says_when_shares_are_those_of_the_models_own_profile(reported: Reported) -> None:
    section = next(one for one in reported.sections if one.name == "branches")
    assert section.model is not None
    assert section.evidence is not None
    kernels = (Kernel("", "Conv", "CPU", 3, 3000), Kernel("", "Softmax", "CPU", 1, 1000))
    views = {section.model.own.key: KernelView(kernels, 1, 5, "profiler")}

    def shown(*ratio_ci95: float) -> str:
        truth = replace(section.estimate.truth, ratio_ci95=ratio_ci95)
        estimate = replace(section.estimate, truth=truth, evidence=replace(section.evidence, views=views))
        return Page(render_page([replace(section, estimate=estimate)])).text

    assert "By the model's own profile" in shown(0.5, 0.6)
    assert "Operator Calls Time, ms Share Conv 3" in shown(0.5, 0.6)
    assert "By the model's own profile" not in shown(0.9, 1.1)


def test_the_page_gives_no_shares_where_bricks_take_far_longer_than_the_model(reported: Reported) -> None:
    section = next(one for one in reported.sections if one.name == "branches")
    truth = replace(section.estimate.truth, ratio=3.0, ratio_ci95=(2.5, 3.5))

    text = Page(render_page([replace(section, estimate=replace(section.estimate, truth=truth))])).text

    assert "they do not explain this model, and the shares of its layers are not known" in text
    assert "of the time of its layers" not in text
    assert "unexplained." not in text


@pytest.mark.parametrize(("ends", "told"), [((0.2, 0.6), True), ((-0.2, 1.0), False)])
def test_what_is_unexplained_is_said_only_beyond_its_interval(
    reported: Reported, ends: tuple[float, float], told: bool
) -> None:
    section = next(one for one in reported.sections if one.name == "branches")
    of_model = section.estimate.truth.ms or 0.0
    term = Term(0.4 * of_model, (ends[0] * of_model, ends[1] * of_model))
    estimate = replace(section.estimate, attribution={**(section.estimate.attribution or {}), "unexplained": term})

    text = Page(render_page([replace(section, estimate=estimate)])).text

    assert ("of it unexplained." in text) == told


def test_without_an_analysis_the_page_says_so_and_claims_nothing(reported: Reported) -> None:
    none = Page(reported.page("branches")).text
    nothing = Page(reported.page("branches", findings={"branches": ()})).text

    assert "no analysis was run" in none
    assert "found nothing" not in none
    assert "no analysis was run" not in nothing
    assert "found nothing that would make it faster" in nothing
    untried = Page(reported.page("branches", findings={"branches": ()}, untried=("denormals",))).text
    assert "found nothing" not in untried
    assert "none is predicted. Left to try: denormals: dlbricks analyze" in untried
    both = reported.page(findings=dict.fromkeys((one.name for one in reported.sections), ()), untried=("denormals",))
    assert '"findings":null' in both, "what nobody looked for is no zero"


def test_a_finding_is_shown_with_evidence_remedy_and_proof(reported: Reported, finding: Finding) -> None:
    text = Page(reported.page("branches", findings={"branches": (finding,)})).text

    assert "Proven: A bias is added" in text
    assert "0.400 ± 0.100 ms" in text  # proven
    assert "0.500" not in text  # predicted: a trial knows better
    for words in (*finding.evidence, finding.remedy.text, finding.remedy.code, "improved.onnx"):
        assert words in text


def test_a_proof_is_shown_at_the_latency_of_the_page(reported: Reported, finding: Finding) -> None:
    twice = replace(finding, saving_ms=2 * finding.saving_ms, ci95_ms=(0.8, 1.2))

    text = Page(reported.page("branches", findings={"branches": (twice,)})).text

    assert "Model before 20.0 ms Model after 19.2 ms Proven saving 0.800 ± 0.200 ms" in text


def test_findings_together_are_summed_up_and_bounds_are_no_savings(reported: Reported, finding: Finding) -> None:
    other = replace(finding, title="Elsewhere", layers=("elsewhere",), proof=None)
    bound = replace(finding, title="Far from the roof", layers=("far",), proof=None, at_most=True)

    text = Page(reported.page("branches", findings={"branches": (finding, other, bound)})).text
    only = Page(reported.page("branches", findings={"branches": (bound,)})).text

    assert "Proven: A bias is added" in text
    assert "Proven:" not in only  # what is predicted does not count
    assert text.index("Proven:") < text.index("Elsewhere") < text.index("Far from the roof")
    assert text.count("Saving at most") == 1
    assert text.index("1 A bias") < text.index("2 Elsewhere") < text.index("3 Far from"), "numbered as shown"
    assert "found nothing that would make it faster" in only
    assert "Far from the roof" in only


def test_every_number_of_a_layer_is_a_row_of_the_database(reported: Reported) -> None:
    data = data_of(reported.page())

    with Store.open(reported.store) as store:
        stored = {one.id: one for one in store.measurements()}
    for model, section in zip(data["models"], reported.sections, strict=True):
        assert len(model["layers"]["brick"]) == len(section.estimate.parts.sequences)
        for brick in model["bricks"]:
            assert stored[brick["id"]].key == brick["key"]
            assert brick["ms"] == float(f"{stored[brick['id']].latency_ns / 1e6:.6g}")
        for row, part in zip(model["layers"]["brick"], section.estimate.parts.sequences, strict=True):
            assert model["bricks"][row]["key"] == part.key


def test_figures_and_setup_carry_their_keys(reported: Reported) -> None:
    section = reported.sections[0]
    assert section.truth is not None

    attributes = [attrs for _, attrs in Page(reported.page("branches")).elements]

    wanted = {
        "data-measurement": section.truth.id,
        "data-model": section.truth.key,
        "data-system": section.estimate.place.system,
        "data-stack": section.estimate.place.stack,
        "data-run": section.truth.run,
    }
    for name, value in wanted.items():
        assert any(found.get(name) == value for found in attributes), name


def test_hostile_names_are_text(reported: Reported, finding: Finding) -> None:
    hostile = reported.sections[1].name
    assert "onclick" in hostile

    page = reported.page(findings={hostile: (finding,)})

    tags = Page(page).elements
    assert [attrs.get("type") for tag, attrs in tags if tag == "script"] == ["application/json", None]
    assert not [attrs for _, attrs in tags if any(name.startswith("on") for name in attrs)]
    assert "\u202e" not in page  # what turns text around is written as an escape
    assert "{{ 7 * 7 }}" in json.dumps(data_of(page))
    assert len(page) < 400_000  # the long name is cut


def test_whatever_a_template_writes_has_no_control_characters() -> None:
    template = _environment().from_string("{{ text }}|{{ text | e }}|{{ markup }}")

    page = template.render(text="a\x1b[2J\u202eb\n<c>", markup=Markup("<b>"))

    assert page == r"a\x1b[2J\u202eb" + "\n&lt;c&gt;|" + r"a\x1b[2J\u202eb" + "\n&lt;c&gt;|<b>"
