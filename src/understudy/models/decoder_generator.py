"""A generator in two parts: a small network draws codes, and the decoder of an auto-encoder makes images of them."""

from __future__ import annotations

from torch import Tensor, nn

from understudy.models.autoencoder import into_unit_ball
from understudy.models.dcgan_generator import DcganGenerator
from understudy.models.generator import Generator, GeneratorConfig

_HIDDEN = 128


class DecoderGenerator(Generator):
    """Latent values and label -> three linear layers -> a code of norm below one -> the DCGAN network.

    A code has as many numbers as there are latent values.
    """

    def __init__(self, config: GeneratorConfig) -> None:
        super().__init__(config)
        self.mapper = nn.Sequential(
            nn.Linear(config.input_size, _HIDDEN),
            nn.LeakyReLU(0.2),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.LeakyReLU(0.2),
            nn.Linear(_HIDDEN, config.latent),
        )
        self.decoder = DcganGenerator(config.model_copy(update={"classes": None, "label_weights": None}))

    def code(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Codes (N, latent) of norm below one."""
        return into_unit_ball(self.mapper(self.condition(latent, labels)))

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Raw images (N, C, H, W)."""
        raw: Tensor = self.decoder(self.code(latent, labels), labels)
        return raw
