"""The page in a browser: it opens without an error, sorts, filters, changes its colours, and takes names for text."""

from __future__ import annotations

from pathlib import Path

import pytest
from dlbricks.analyzer.findings.finding import Finding

from ..conftest import Reported
from .browser import CHROMIUM, visit

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is found (apt-get install chromium)")

_TIMES = "all('.layers tbody tr').map((row) => Number(row.cells[4].textContent))"


def test_it_opens_without_a_word_on_the_console(reported: Reported, tmp_path: Path) -> None:
    seen = visit(
        reported.page("branches"),
        "return [all('.layers tbody tr').length, all('.roof circle').length, all('.timeline rect').length, "
        "all('.tree .leaf').length, document.documentElement.scrollWidth <= innerWidth]",
        tmp_path,
    )

    rows, dots, jobs, leaves, fits = seen.value
    assert seen.console == []
    assert rows == leaves == len(reported.sections[0].estimate.parts.sequences)
    assert dots > 0
    assert jobs >= rows
    assert fits


def test_the_table_sorts_by_a_click(reported: Reported, tmp_path: Path) -> None:
    script = f"""
        const before = {_TIMES};
        one('.layers th:nth-child(5) button').click();
        const after = {_TIMES}, sort = one('.layers th:nth-child(5)').getAttribute('aria-sort');
        one('.layers th:first-child button').click();
        return [before, after, sort, all('.layers tbody tr').map((row) => Number(row.cells[0].textContent))];
    """
    before, after, sort, positions = visit(reported.page("branches"), script, tmp_path).value

    assert before == sorted(before, reverse=True)
    assert after == sorted(after)
    assert sort == "ascending"
    assert positions == sorted(positions, reverse=True)


def test_the_table_filters_and_searches(reported: Reported, tmp_path: Path) -> None:
    script = """
        const rows = () => all('.layers tbody tr').map((row) => row.cells[2].textContent);
        const search = one('.layers input[type=search]'), whole = rows();
        type(search, 'conv'); const found = rows();
        type(search, 'nothing is called so'); const none = rows();
        type(search, '');
        const op = one('.layers select').options[1].value;
        choose(one('.layers select'), op);
        return [whole.length, found, none, op, rows(), one('.layers [role=status]').textContent];
    """
    whole, found, none, op, chosen, status = visit(reported.page("branches"), script, tmp_path).value

    assert 0 < len(found) < whole
    assert all("Conv" in row for row in found)
    assert none == []
    assert chosen
    assert all(op in row for row in chosen)
    assert status == f"{len(chosen)} of {whole} rows"


def test_bricks_are_the_layers_that_are_the_same(reported: Reported, tmp_path: Path) -> None:
    script = """
        const button = all('.layers .tools button').find((node) => node.textContent === 'Each brick');
        button.click();
        return all('.layers tbody tr').map((row) => row.dataset.brick);
    """
    keys = visit(reported.page("branches"), script, tmp_path).value

    assert len(keys) == len(set(keys))
    assert set(keys) == {part.key for part in reported.sections[0].estimate.parts.sequences}


@pytest.mark.parametrize("dark", [False, True])
def test_colours_follow_the_system_and_the_switch(reported: Reported, tmp_path: Path, *, dark: bool) -> None:
    script = """
        const ground = () => getComputedStyle(document.body).backgroundColor;
        const first = ground(), button = one('#theme'), pressed = button.getAttribute('aria-pressed');
        button.click();
        return [first, pressed, ground(), button.getAttribute('aria-pressed')];
    """
    first, pressed, then, after = visit(reported.page("branches"), script, tmp_path, dark=dark).value

    assert (pressed, after) == (("true", "false") if dark else ("false", "true"))
    assert first != then
    assert (first == "rgb(17, 22, 28)") == dark


def test_marks_are_stepped_through_with_the_keyboard(reported: Reported, tmp_path: Path) -> None:
    script = """
        const jobs = all('.timeline .job'), said = one('.timeline .said');
        jobs[0].focus();
        const first = said.textContent;
        press(jobs[0], 'ArrowRight');
        return [first, said.textContent, document.activeElement === jobs[1], jobs.map((job) => job.tabIndex)];
    """
    first, second, moved, stops = visit(reported.page("branches"), script, tmp_path).value

    assert "ms" in first
    assert first != second
    assert moved
    assert stops.count(0) == 1  # one stop of the Tab key


def test_every_control_has_a_name(reported: Reported, finding: Finding, tmp_path: Path) -> None:
    script = """
        return all('button, select, input, summary, a, [tabindex="0"]').filter((node) => node.getClientRects().length)
            .filter((node) => !(node.textContent.trim() || node.getAttribute('aria-label') || node.labels?.length))
            .map((node) => node.outerHTML);
    """
    page = reported.page("branches", findings={"branches": (finding,)})

    assert visit(page, script, tmp_path).value == []


def test_hostile_names_do_nothing(reported: Reported, finding: Finding, tmp_path: Path) -> None:
    hostile = reported.sections[1].name
    page = reported.page(findings={hostile: (finding,)})
    script = """
        all('button, summary').forEach((node) => node.click());
        await new Promise((done) => setTimeout(done, 200));
        return [window.hit ?? null, all('article.model:not([hidden]) img, article b[onclick]').length,
            document.documentElement.scrollWidth <= innerWidth, one('article.model:not([hidden]) h1').textContent,
            one('article.model:not([hidden]) .layers').textContent];
    """
    seen = visit(page, script, tmp_path, place="m1")

    hit, elements, fits, title, layers = seen.value
    assert hit is None
    assert elements == 0
    assert seen.console == []
    assert fits
    assert title == hostile
    assert "<script>window.hit = 1</script>" in layers


def test_the_overview_leads_to_each_model(reported: Reported, tmp_path: Path) -> None:
    script = """
        const articles = () => shown('article').map((node) => node.id), first = articles();
        one('#models tbody a[href="#m1"]').click();
        await new Promise((done) => setTimeout(done, 100));
        const second = articles();
        choose(one('#pick'), '0');
        await new Promise((done) => setTimeout(done, 100));
        return [first, second, articles(), one('#pick').value];
    """
    seen = visit(reported.page(), script, tmp_path)

    assert seen.value == [["all"], ["m1"], ["m0"], "0"]
    assert seen.console == []


def test_names_break_after_separators_on_a_narrow_screen(reported: Reported, tmp_path: Path) -> None:
    script = """
      const names = [...document.querySelectorAll("td.layer > a > bdi, td.layer > bdi")];
      const lines = (one) => new Set([...one.getClientRects()].map((box) => box.top)).size;
      const places = (one) => one.querySelectorAll("wbr").length + one.textContent.split(" ").length;
      return [names.length, names.filter((one) => lines(one) > places(one)).map((one) => one.textContent)]
    """

    for place in ("m0", "all"):
        count, cut = visit(reported.page(), script, tmp_path, width=500, place=place).value

        assert count
        assert cut == []


def test_a_narrow_screen_scrolls_in_one_direction(reported: Reported, tmp_path: Path) -> None:
    script = """
      const tables = [...document.querySelectorAll("table")];
      const wide = tables.filter((one) => one.scrollWidth > one.parentElement.clientWidth);
      const signed = wide.every((one) => getComputedStyle(one.parentElement).backgroundAttachment.includes("local"));
      return [innerWidth, document.documentElement.scrollWidth, wide.length, signed]
    """

    for place, screen in (("m0", 500), ("all", 500), ("m0", 1320), ("m0", 800), ("m0", 420)):
        width, scrolled, wide, signed = visit(reported.page(), script, tmp_path, width=screen, place=place).value

        assert scrolled <= width
        assert wide or screen > 500
        assert signed, "a table that is cut off has a shadow where it scrolls"
