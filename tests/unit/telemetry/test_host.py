"""A host: what is told of a machine is what it would say itself."""

import dataclasses

import msgspec
import pytest

from specreg.core.errors import SensorError
from specreg.servers.provision import Provision
from specreg.telemetry.identity import Host, current_environment, find_gpus, this_host
from specreg.telemetry.sensor import Device, Scope
from tests.unit import builders
from tests.unit.many.test_many_places import FOUR

PACKAGE = Device(sensor="rapl", id="package-0", name="package-0", number=0, scope=Scope.PACKAGE)
HOST = Host(cpu=builders.ENVIRONMENT, gpus=FOUR, processors=(PACKAGE,))
WITHOUT = Host(cpu=builders.ENVIRONMENT, why_none="no driver", why_dark="no right to read it")
PROVISION = Provision(
    on_gpu=True, version=None, python=None, url=None, show=lambda _: None, site=HOST
)


def test_this_machine_is_what_it_is_asked_for_elsewhere() -> None:
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(this_host()), type=Host)
    assert told.environment(needs_gpus=0) == current_environment(needs_gpus=0)
    assert told.found == find_gpus()
    assert told == this_host()


def test_the_environment_is_that_of_the_gpus_in_use() -> None:
    assert HOST.environment(needs_gpus=2).name == "h100-75gb-x2"
    assert HOST.environment(needs_gpus=0) == builders.ENVIRONMENT
    assert WITHOUT.environment(needs_gpus=1) == builders.ENVIRONMENT


def test_devices_are_the_first_gpus_or_the_processors() -> None:
    assert HOST.devices(2) == FOUR[:2]
    assert HOST.devices(0) == (PACKAGE,)
    for gpus, why in ((1, "no driver"), (0, "no right to read it")):
        with pytest.raises(SensorError, match=why):
            WITHOUT.devices(gpus)
    with pytest.raises(SensorError, match=r"there are 4 of 5 GPUs"):
        HOST.devices(5)


def test_a_measurement_elsewhere_asks_for_nothing_here() -> None:
    spec = dataclasses.replace(builders.SPEC, engine_env=())
    assert PROVISION.found_gpus.devices == FOUR
    assert PROVISION.why_no_power(spec) == ""
    assert PROVISION.torch_version(spec) == ""
    dark = dataclasses.replace(PROVISION, on_gpu=False, site=WITHOUT)
    assert dark.why_no_power(spec) == "no right to read it"
