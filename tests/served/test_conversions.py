"""Conversions that take long, and what the server does meanwhile."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from files import office, sheet
from memagent.documents.conversion import cache_folder
from served.reads import QUESTION, events, start
from server import facts_document
from waiting import find_converters, wait_for

SLOW = 8  # reads, which is more than the server has threads
ROW = b'<row><c t="inlineStr"><is><t>FACT-%d: it is so.</t></is></c></row>'


def upload(client: Any, content: bytes) -> str:
    """The id of a workbook that is sent to the server."""
    file: str = client.post("/v1/files", files={"file": ("a.xlsx", content)}).json()["id"]
    return file


def states(client: Any, reads: list[str]) -> set[str]:
    """The states of some reads."""
    return {client.get(f"/v1/reads/{read}").json()["state"] for read in reads}


@pytest.mark.slow
@office
def test_no_read_waits_for_the_conversions_of_others(serving: Any, facts: Any) -> None:
    workbook = sheet(ROW % 1 * 1_000_000)
    with serving(facts(calls=SLOW + 1)).client() as client:
        slow = [
            start(client, files=[upload(client, workbook + b"%d" % n)], document=None) for n in range(SLOW)
        ]
        wait_for(lambda: states(client, slow) == {"running"} and find_converters(os.getpid()))
        assert events(client, start(client))[-1][1] == {"state": "done"}
        turns = [{"role": "user", "content": text} for text in (facts_document(12), QUESTION)]
        body = {"model": "memagent", "messages": turns, "memagent": {}}  # to be read, not sent on
        chat = client.post("/v1/chat/completions", json=body)
        assert "FACT-11" in chat.json()["choices"][0]["message"]["content"]
        assert states(client, slow) == {"running"}
        assert 0 < len(find_converters(os.getpid())) < SLOW  # the others wait

        for read in reversed(slow):  # those that wait, and then those that are converted
            assert client.post(f"/v1/reads/{read}/cancel").json()["state"] == "cancelled"
        small = start(client, files=[upload(client, sheet(ROW % 7))], document=None)
        assert events(client, small)[-1][1] == {"state": "done"}
        assert "FACT-7" in client.get(f"/v1/reads/{small}/result").json()["answer"]
        wait_for(lambda: not find_converters(os.getpid()))
        wait_for(lambda: len(list(cache_folder().iterdir())) == 1)  # nothing is left of what was cancelled


@office
def test_a_text_is_not_converted_once_its_client_has_left(serving: Any) -> None:
    with serving().client() as client:
        file = upload(client, sheet(ROW % 1 * 1_000_000))
        read = start(client, files=[file], document=None)
        assert client.post(f"/v1/reads/{read}/cancel").json()["state"] == "cancelled"
        wait_for(lambda: not find_converters(os.getpid()))
        with ThreadPoolExecutor(1) as threads:
            reply = threads.submit(client.get, f"/v1/reads/{read}/text", timeout=5)
            wait_for(lambda: find_converters(os.getpid()))
            with pytest.raises(httpx2.TimeoutException):
                reply.result()
        wait_for(lambda: not find_converters(os.getpid()))
        wait_for(lambda: not list(cache_folder().iterdir()))
