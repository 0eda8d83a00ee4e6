"""What a person does in the Dagster UI: open a page, read it, fill the launchpad, take a picture."""

from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import FloatRect, Locator, Page, expect

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
LOCATION = "/locations/floe_dagster_iceberg"
MINUTES = 60_000.0


class DagsterPage:
    """A tab of the browser that shows the UI."""

    def __init__(self, tab: Page, address: str) -> None:
        self.tab, self._address = tab, address

    def open(self, path: str) -> None:
        self.tab.goto(f"{self._address}{path}")

    def sees(self, text: str, *, minutes: float = 1.5) -> Locator:
        """Wait until a text is there to be read."""
        found = self.tab.get_by_text(text, exact=True).locator("visible=true").first
        expect(found).to_be_visible(timeout=minutes * MINUTES)
        return found

    def launch(self, job: str, run_config: str) -> None:
        """Replace what the launchpad begins with, launch, and see the run succeed."""
        self.open(f"{LOCATION}/jobs/{job}/playground")
        self.tab.locator(".CodeMirror").first.click()
        self.tab.keyboard.press("Control+A")
        self.tab.keyboard.insert_text(run_config)
        self.launch_as_it_stands()

    def launch_as_it_stands(self) -> None:
        self.tab.get_by_role("button", name="Launch Run").click()
        self.tab.wait_for_url("**/runs/*")
        self.sees("Success", minutes=3)

    def open_lineage(self) -> None:
        """Every asset with its state, on a page that is wide enough for all of them."""
        self.tab.set_viewport_size({"width": 2100, "height": 1150})
        self.tab.add_init_script("localStorage.setItem('asset-graph-direction', JSON.stringify('vertical'))")
        self.open("/asset-groups")
        self.sees("bronze")
        self.tab.get_by_text("Hide navigation").locator("visible=true").first.click()
        self.tab.keyboard.press("Alt+KeyE")  # all groups unfold
        self.sees("departures")
        self.tab.mouse.click(340, 80)  # the list of groups merges away; its button has no name

    def open_graph_of(self, *assets: str) -> FloatRect:
        """The lineage of a few assets, large enough to be read in a picture; returns where it is on the page."""
        self.tab.set_viewport_size({"width": 1500, "height": 880})
        self.tab.add_init_script("localStorage.setItem('asset-graph-direction', JSON.stringify('horizontal'))")
        selection = quote(" or ".join(f'key:"{asset}"' for asset in assets), safe="")
        self.open(f"/asset-groups~{selection}/")
        self.sees("bronze")
        self.tab.get_by_text("Hide navigation").locator("visible=true").first.click()
        self.tab.keyboard.press("Alt+KeyE")  # all groups unfold
        self.sees("departures")
        # The graph is laid out for the page as it is now.
        self.tab.reload()
        self.sees("departures")
        return FloatRect(x=400, y=115, width=1040, height=745)

    def open_rejected_run(self, step: str) -> None:
        """The events of a step in the run that the audit of the demo has rejected."""
        query = '{runsOrError(filter: {pipelineName: "new_day", statuses: [FAILURE]}) {... on Runs {results {runId}}}}'
        answer = self.tab.request.post(f"{self._address}/graphql", data={"query": query}).json()
        [run] = answer["data"]["runsOrError"]["results"]
        self.open(f"/runs/{run['runId']}?logs={quote(f'step:{step}')}")

    def take_picture(self, name: str, *, of: Locator | None = None, clip: FloatRect | None = None) -> None:
        """A screenshot for the README: of the page, or of a part of it."""
        IMAGES.mkdir(exist_ok=True)
        # What is still on its way would make every picture a different one.
        self.tab.wait_for_timeout(3_000)
        file = IMAGES / f"{name}.png"
        if of is not None:
            of.screenshot(path=file, animations="disabled")
            return
        self.tab.screenshot(path=file, animations="disabled", clip=clip)
