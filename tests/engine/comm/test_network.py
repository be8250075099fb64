"""A store opens on the one address it is given, or says why it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from samepath.engine.comm import network
from samepath.engine.comm.environment import LOOPBACK
from samepath.errors import UserError


def test_nothing_can_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("Network is unreachable\nframe #0: a page of them")

    with pytest.raises(UserError, match=r"listen on 192\.0\.2\.1 \(Cannot assign .*\); give"):
        network.open_store("192.0.2.1")
    monkeypatch.setattr(network, "TCPStore", refuse)
    with pytest.raises(UserError, match=r"listen on 127\.0\.0\.1 \(Network is unreachable\); give"):
        network.open_store(LOOPBACK)
