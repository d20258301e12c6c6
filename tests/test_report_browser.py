"""The report in a real browser: it draws, it zooms, it fits a phone, it asks nobody."""

from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

from rejex_stream.demo.datasets import play, prepare
from rejex_stream.report import analyse_run, write_report

pytestmark = pytest.mark.browser

# Share of pixels of a plot that are not empty.
INKED = """(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let inked = 0;
  for (let i = 3; i < data.length; i += 4) if (data[i] > 0) inked++;
  return inked / (data.length / 4);
}"""

# Plots learn their size in one frame and are drawn in the next.
TWO_FRAMES = """new Promise((done) => {
  requestAnimationFrame(() => requestAnimationFrame(done));
})"""


def eventually(page, holds):
    """Wait until what a test does has an effect, however busy the machine is."""
    for _ in range(200):
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it did not happen in time")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    feeds = prepare(out)
    for feed in feeds:
        play(feed)
    write_report(
        out / "report.html", [analyse_run(feed.run()) for feed in feeds], "rejex-stream demo"
    )
    return (out / "report.html").as_uri()


@pytest.fixture
def visit(browser, report):
    """Open the report; afterwards nothing may have been asked for or complained about."""
    complaints, opened = [], []

    def open_page(width=1200, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url == report or request.url.startswith("data:")
                else complaints.append(request.url)
            ),
        )
        page.goto(report)
        page.evaluate(TWO_FRAMES)
        return page

    yield open_page
    for context in opened:
        context.close()
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_every_plot_is_drawn_and_nothing_sticks_out(visit, width, scheme):
    page = visit(width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    plots = page.locator("canvas")
    assert plots.count() == 2 * 3 + 1 + 5  # strip, score, rate; flow; five channels
    for k in range(plots.count()):
        assert plots.nth(k).evaluate(INKED) > 0.005


def test_pointing_at_a_plot_tells_values_and_the_reason(visit):
    page = visit()
    plot, tip = (
        page.locator('#demo-water canvas[data-plot="channel-0"]'),
        page.locator("#demo-water .tip"),
    )
    page.get_by_role("button", name="third low moment").click()

    def told():  # pointed at again until the plot has come to rest
        box = plot.bounding_box()
        page.mouse.move(box["x"] + 5, box["y"] + 100)
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 100)
        text = tip.inner_text()
        flagged = "anomaly" in text or "rejected" in text
        return flagged and all(word in text for word in ("Apr", "UTC", "l/s", "rank", "score"))

    eventually(page, told)


def test_dragging_zooms_and_double_click_shows_all_again(visit):
    page = visit()
    rate = page.locator('#demo-turbines canvas[data-plot="rate"]')
    rate.scroll_into_view_if_needed()
    pixels = "(canvas) => canvas.toDataURL()"
    before = rate.evaluate(pixels)
    box = rate.bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 60, steps=5)
    page.mouse.up()
    page.mouse.move(5, 5)
    eventually(page, lambda: rate.evaluate(pixels) != before)
    over = page.locator("#demo-turbines .u-over")
    strip = page.locator('#demo-turbines canvas[data-plot="strip"]')
    marked = strip.locator("xpath=..").locator(".u-select")
    eventually(page, lambda: marked.bounding_box()["width"] > 20)  # the strip shows what is shown
    over.nth(3).dblclick()
    page.mouse.move(5, 5)
    eventually(page, lambda: rate.evaluate(pixels) == before)


def test_tabs_and_keys_work_without_a_mouse(visit):
    page = visit()
    chosen = page.get_by_role("button", name="WT-04", exact=True)
    chosen.focus()
    page.keyboard.press("Enter")
    score = page.locator('#demo-turbines canvas[data-plot="score"]')
    eventually(page, lambda: chosen.get_attribute("aria-pressed") == "true")
    eventually(page, lambda: "WT-04" in score.get_attribute("aria-label"))
    before = score.evaluate("(canvas) => canvas.toDataURL()")
    page.locator("#demo-turbines .charts").focus()
    page.keyboard.press("+")
    eventually(page, lambda: score.evaluate("(canvas) => canvas.toDataURL()") != before)


def test_a_part_of_the_strip_is_shown_when_it_is_dragged_over(visit):
    page = visit()
    rate = page.locator('#demo-turbines canvas[data-plot="rate"]')
    strip = page.locator('#demo-turbines canvas[data-plot="strip"]')
    strip.scroll_into_view_if_needed()
    pixels = "(canvas) => canvas.toDataURL()"
    before = rate.evaluate(pixels)
    box = strip.bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 420, box["y"] + 20, steps=5)
    page.mouse.up()
    eventually(page, lambda: rate.evaluate(pixels) != before)
    page.locator("#demo-turbines").get_by_role("button", name="All").click()
    eventually(page, lambda: rate.evaluate(pixels) == before)


def test_no_script_runs_but_the_reports_own(browser, report, tmp_path):
    page = browser.new_page()
    text = Path(url2pathname(urlsplit(report).path)).read_text(encoding="utf-8")
    added = tmp_path / "added.html"
    added.write_text(text.replace("</main>", "<script>window.ran = 1</script></main>"))
    page.goto(added.as_uri())
    assert page.evaluate("[window.ran, typeof uPlot]") == [None, "function"]
    page.close()
