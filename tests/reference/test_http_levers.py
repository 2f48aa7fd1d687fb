"""Levers on the HTTP side: none of them changes what a request is answered."""

import asyncio
import random

import pytest
from driver import FAST, alive, running_stack, settled
from httpclient import http_shapes

pytestmark = pytest.mark.stack


@pytest.mark.parametrize(
    "levers",
    [
        {},
        {"OVERLAP": "off", "HOST_WORK": "lean", "STREAM_INTERVAL": "3"},
        {"JSON": "orjson"},
        {"POSTPROC_WORKERS": "2"},
        {"POSTPROC_WORKERS": "3", "JSON": "orjson", "STREAM_INTERVAL": "4", "HOST_WORK": "lean"},
        {"POSTPROC_WORKERS": "1", "LAYOUT": "thread", "SUBMIT": "in-process", "TOKEN_IDS": "int32"},
        {"HTTP_FRONTENDS": "3"},
        {"HTTP_FRONTENDS": "2", "POSTPROC_WORKERS": "2", "JSON": "orjson", "RANKS": "2"},
        {"HTTP_FRONTENDS": "2", "LAYOUT": "thread", "RPC_RECEIVE": "event"},
        {"LAYOUT": "leader", "PRESET": "current"},
        {"LAYOUT": "thread", "PRESET": "original-2026-05", "RANKS": "2"},
    ],
    ids=lambda levers: ",".join(f"{name}={value}" for name, value in levers.items()) or "defaults",
)
def test_no_lever_changes_what_a_request_is_answered_over_http(levers: dict[str, str]) -> None:
    if levers.get("JSON") == "orjson":
        pytest.importorskip("orjson")
    env = {f"REFSTACK_{name}": value for name, value in levers.items()}
    with running_stack(TLLM_RPC_SUBMIT_BATCH_MAX="8", **{**FAST, **env}) as stack:
        asyncio.run(http_shapes(stack.url, 300, random.Random(str(levers))))
        info = settled(stack)
        assert info["kv_blocks"]["free"] == info["kv_blocks"]["total"]
        roles = [process["role"] for process in info["processes"]]
        assert len([role for role in roles if role.startswith("postproc")]) == int(levers.get("POSTPROC_WORKERS", "0"))
        assert stack.stop() == 0
        assert not any(alive(process["pid"]) for process in info["processes"])
