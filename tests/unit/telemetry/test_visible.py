"""CUDA_VISIBLE_DEVICES, in all its forms."""

import msgspec
import pytest

from specreg.core.errors import SensorError
from specreg.telemetry.nvml import visible
from specreg.telemetry.sensor import Device
from tests.unit import builders

ALIKE = tuple(
    builders.device(id=f"GPU-{letter}{letter}-1", number=number)
    for number, letter in enumerate("abcd")
)
MIXED = (ALIKE[0], msgspec.structs.replace(ALIKE[1], name="NVIDIA L4"))


def sliced(uuid: str) -> Device | None:
    return None if uuid == "MIG-none" else builders.device("slice", id=uuid)


def seen(
    cuda_visible: str | None, devices: tuple[Device, ...] = ALIKE, **variables: str
) -> list[str]:
    said_so = {} if cuda_visible is None else {"CUDA_VISIBLE_DEVICES": cuda_visible}
    visible_devices = visible(devices, {**said_so, **variables}, slice_with_uuid=sliced)
    return [device.id for device in visible_devices]


@pytest.mark.parametrize(
    ("cuda_visible", "numbers"),
    [
        (None, "abcd"),
        ("0", "a"),
        ("2,0", "ca"),
        (" 1 , 3 ", "bd"),
        ("", ""),
        ("-1", ""),
        ("NoDevFiles", ""),
        ("1,-1,2", "b"),
        ("1,9,2", "b"),
        ("0,0", ""),
        ("GPU-bb-1", "b"),
        ("GPU-cc", "c"),
        ("GPU-", ""),
        ("GPU-zz,0", ""),
        ("GPU-dd,0", "da"),
        ("²", ""),
        ("0,٣", "a"),
        ("1," + "9" * 5_000, "b"),
        ("+1", ""),
    ],
)
def test_what_cuda_sees_is_seen(cuda_visible: str | None, numbers: str) -> None:
    assert seen(cuda_visible) == [f"GPU-{letter}{letter}-1" for letter in numbers]


def test_a_slice_is_asked_for_by_its_name() -> None:
    assert seen("1,MIG-none,2") == ["GPU-bb-1"]
    assert seen("MIG-1234,1") == ["MIG-1234", "GPU-bb-1"]


def test_numbers_of_mixed_gpus_mean_nothing_without_their_order() -> None:
    with pytest.raises(SensorError, match="set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        seen("0", MIXED)
    assert seen("1", MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID") == ["GPU-bb-1"]
    assert seen("GPU-bb", MIXED) == ["GPU-bb-1"]
    with pytest.raises(SensorError, match="or name them by their UUIDs in CUDA_VISIBLE_DEVICES"):
        seen(None, MIXED)
    with pytest.raises(SensorError, match=r"^CUDA_VISIBLE_DEVICES isn't set: CUDA numbers GPUs"):
        seen(None, MIXED)
    with pytest.raises(SensorError, match=r"^CUDA_VISIBLE_DEVICES=0,1: CUDA numbers GPUs"):
        seen("0,1", MIXED)
    assert seen(None, MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID") == ["GPU-aa-1", "GPU-bb-1"]
