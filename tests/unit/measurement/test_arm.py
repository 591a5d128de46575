"""The counters of an arm are read without holding up what else the event loop does."""

import asyncio
import dataclasses
import threading
from typing import cast

from specreg.acceptance.record import Counters
from specreg.core.families import Family
from specreg.engines.engine import Engine
from specreg.engines.vllm import VllmWireFormat
from specreg.load.rounds import Clients
from specreg.measurement.arm import Arm, ArmReplay
from tests.unit import builders

COUNTERS = Counters(steps=3)


class SlowWireFormat(VllmWireFormat):
    """Parses a page for as long as the event loop stands still, or until it is let go on."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def parse_counters(self, page: str, *, speculates: bool = True) -> Counters:
        assert speculates
        assert page == "the page"
        assert self.may_end.wait(10), "the event loop stands still"
        return COUNTERS


class PageClients:
    """Clients whose server has one page."""

    async def scrape(self, path: str) -> str:
        assert path == "/metrics"
        return "the page"


def replay_of(wire_format: SlowWireFormat) -> ArmReplay:
    server = builders.server()
    engine = cast("Engine", _EngineWith(wire_format))
    arm = Arm(case=builders.CASE, server=dataclasses.replace(server, engine=engine))
    return ArmReplay(arm=arm, clients=cast("Clients", PageClients()), parsed_within_s=0.05)


@dataclasses.dataclass
class _EngineWith:
    wire_format: SlowWireFormat


def test_the_event_loop_goes_on_while_a_page_is_parsed() -> None:
    async def go() -> Counters | None:
        wire_format = SlowWireFormat()
        replay = replay_of(wire_format)
        replay.parsed_within_s = 60.0
        beginning = asyncio.create_task(replay.begin())
        while not beginning.done():
            await asyncio.sleep(0.01)
            wire_format.may_end.set()
        await beginning
        return replay.before

    assert asyncio.run(go()) == COUNTERS


def test_a_page_that_takes_too_long_to_parse_spoils_the_acceptance() -> None:
    async def go() -> ArmReplay:
        wire_format = SlowWireFormat()
        replay = replay_of(wire_format)
        try:
            await replay.begin()
        finally:
            wire_format.may_end.set()
        return replay

    reason = asyncio.run(go()).invalid[Family.ACCEPTANCE]
    assert str(reason).startswith("METRICS_UNREADABLE: /metrics takes more than 0.05 s to parse")
