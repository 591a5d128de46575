"""Which GPUs a process sees: what CUDA_VISIBLE_DEVICES says, in all its forms."""

from collections.abc import Callable, Mapping, Sequence

from specreg.core.errors import SensorError
from specreg.telemetry.sensors._sensor import Device

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"


def visible(
    devices: Sequence[Device],
    variables: Mapping[str, str],
    *,
    slice_called: Callable[[str], Device | None],
) -> Sequence[Device]:
    """The GPUs that a process with these environment variables sees, in its order.

    As CUDA's programming guide has it: numbers or UUIDs, which may be cut short as long as they
    fit one; what follows the first that fits none is not seen, and what is named twice leaves none.

    Args:
        devices: all, in the driver's order.
        variables: the environment.
        slice_called: the slice of a GPU (MIG) of such a UUID, None where there is none.

    Raises:
        SensorError: there is no telling which ones they are.
    """
    said = variables.get(_VARIABLE)
    if said is None:
        said = ",".join(str(number) for number in range(len(devices)))
    found: list[Device] = []
    for word in filter(None, (part.strip() for part in said.split(","))):
        if word.startswith("MIG-"):
            device = slice_called(word)
        elif word.startswith("GPU-"):
            device = _of_uuid(word, devices)
        else:
            device = _of_number(word, devices, variables)
        if device is None:
            break
        if device in found:
            return ()
        found.append(device)
    return tuple(found)


def _of_uuid(word: str, devices: Sequence[Device]) -> Device | None:
    fitting = [device for device in devices if device.id.startswith(word)]
    return fitting[0] if len(fitting) == 1 else None


def _of_number(word: str, devices: Sequence[Device], variables: Mapping[str, str]) -> Device | None:
    if not word.isdigit() or int(word) >= len(devices):
        return None
    if len({device.name for device in devices}) > 1 and variables.get(_ORDER) != "PCI_BUS_ID":
        message = (
            f"{_VARIABLE}={variables.get(_VARIABLE, '')}: CUDA numbers GPUs of several kinds by"
            f" their speed, so nobody knows which is which; set {_ORDER}=PCI_BUS_ID, or name them"
            f" by their UUIDs in {_VARIABLE}"
        )
        raise SensorError(message)
    return devices[int(word)]
