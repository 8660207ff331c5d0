"""Looking whether a library is done: ends when it is, when its time is over, and when nobody wants it any more."""

from __future__ import annotations

import threading

from pagewire.kvtransfer.transports.polling import until


def test_it_ends_when_it_is_over() -> None:
    looks = iter([False, False, False, True])
    assert until(lambda: next(looks), 60.0, threading.Event())
    assert next(looks, None) is None, "and looks no more"


def test_what_is_over_at_once_is_over_whatever_the_time() -> None:
    given_up = threading.Event()
    given_up.set()
    assert until(lambda: True, 0.0, given_up)


def test_it_ends_at_its_time() -> None:
    assert not until(lambda: False, 0.05, threading.Event())


def test_it_ends_when_it_is_given_up() -> None:
    given_up = threading.Event()
    threading.Timer(0.05, given_up.set).start()
    assert not until(lambda: False, 60.0, given_up)
