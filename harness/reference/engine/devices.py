"""Which device a stack's steps run on."""

from harness.reference.engine.device import Device, EmulatedDevice
from harness.reference.settings import ReferenceSettings


def make_device(settings: ReferenceSettings) -> Device:
    if settings.device == "torch":
        from harness.reference.engine.torch_device import TorchDevice

        return TorchDevice(settings.max_batch_size, settings.tokens_per_block)
    return EmulatedDevice(
        settings.max_batch_size,
        base_ms=settings.device_base_ms,
        per_request_us=settings.device_per_request_us,
        per_prompt_token_us=settings.device_per_prompt_token_us,
        calls=settings.device_calls,
    )
