"""The image that a broker goes by, and those who follow it.

Noun: an `ImageHolder`.

Rule: an image is taken in three steps: whoever must prepare for it is waited for, then it takes the place of the one
before, then listeners are told. None of them can keep it from being taken: it is how the cluster is.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from penstock.cluster.image import ClusterImage

logger = logging.getLogger(__name__)

Listener = Callable[[ClusterImage, ClusterImage], None]
Preparation = Callable[[ClusterImage, ClusterImage], Awaitable[None]]
Cancel = Callable[[], None]


class ImageHolder:
    """Holds the empty image at first."""

    def __init__(self) -> None:
        self._image = ClusterImage()
        self._listeners: list[Listener] = []
        self._preparations: list[Preparation] = []

    @property
    def image(self) -> ClusterImage:
        return self._image

    def listen(self, listener: Listener) -> Cancel:
        """Call `listener` with the image before and after each change."""
        self._listeners.append(listener)

        def cancel() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return cancel

    def prepare(self, preparation: Preparation) -> Cancel:
        """Await `preparation` with the image before and after each change, before anybody sees it."""
        self._preparations.append(preparation)

        def cancel() -> None:
            if preparation in self._preparations:
                self._preparations.remove(preparation)

        return cancel

    async def prepare_for(self, image: ClusterImage) -> None:
        """The first step; whoever asks sees to it that it is done for one image at a time."""
        for preparation in list(self._preparations):
            try:
                await preparation(self._image, image)
            except Exception:
                logger.exception("a preparation for a change of the cluster's metadata failed")

    def take_over(self, image: ClusterImage) -> None:
        """The second and the third."""
        before, self._image = self._image, image
        for listener in list(self._listeners):
            try:
                listener(before, image)
            except Exception:
                # The change is stored: the others hear of it, and whoever asked is told so.
                logger.exception("a listener to the cluster's metadata failed")
