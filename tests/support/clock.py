"""Imported before anything that keeps ``time.time``, this lets a process live some days later."""

import time


class Clock:
    """Stands for ``time.time``."""

    days_later = 0
    real = time.time

    def __call__(self) -> float:
        return Clock.real() + self.days_later * 86_400


time.time = Clock()
