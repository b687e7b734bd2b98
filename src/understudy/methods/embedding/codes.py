"""Mean embeddings of codes: random Fourier features of what an encoder makes of an image, and the fit to them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from understudy.engines.dpsgd.sharing import Sharing
from understudy.engines.embedding.means import Embedding, Fit, NoisyMeans, distance
from understudy.files import read_tensors, write_tensors
from understudy.methods.embedding.dp_merf_ae import CodeEmbeddingConfig
from understudy.models.autoencoder import DecoderGenerator
from understudy.runs.run import Run

CODES = "mean embedding of codes"  # as work that several processes share


class CodeEmbedding:
    """Features of images: their code, of norm below one, in random frequencies; the constant last feature counts.

    Privacy: the encoder is a sanitized value and treats each image for itself. Whatever a code is, its Fourier features
    have norm one, so a record adds one row of norm at most 1 to one class.
    """

    def __init__(self, encoder: nn.Module, of_codes: Embedding) -> None:
        self._encoder, self.of_codes = encoder, of_codes

    @classmethod
    def of_run(cls, run: Run, encoder: nn.Module, code: int, settings: CodeEmbeddingConfig) -> CodeEmbedding:
        """Frequencies of this run: drawn without the data and kept, because the noisy embedding belongs to them."""
        path = run.files.frequencies
        if not path.exists():
            drawn = torch.randn(code, settings.frequencies, generator=run.randomness.generator())
            write_tensors(path, {"frequencies": drawn / settings.length_scale})
        frequencies = read_tensors(path)[0]["frequencies"].to(run.device)
        return cls(encoder, Embedding(frequencies, settings.size_share))

    @classmethod
    def of_shape(cls, run: Run, encoder: nn.Module, code: int, settings: CodeEmbeddingConfig) -> CodeEmbedding:
        """Features of a process that helps: the leader fills in the encoder's weights and the frequencies."""
        empty = torch.zeros(code, settings.frequencies, device=run.device)
        return cls(encoder.to(run.device), Embedding(empty, settings.size_share))

    @property
    def sharing(self) -> Sharing:
        """For processes that help: the encoder, which is sanitized, and the frequencies, which the leader sends."""
        return Sharing({}, [*self._encoder.parameters(), *self._encoder.buffers(), self.of_codes.frequencies], CODES)

    @property
    def size_share(self) -> float:
        """The part of a record's squared norm that counts its class."""
        return self.of_codes.size_share

    @property
    def count(self) -> int:
        """Features of the code and the constant one."""
        return self.of_codes.count

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Unit-norm features (N, count) of images (N, C, H, W) in [0, 1]."""
        return self.of_codes(self._encoder(images))


class CodeFit(Fit):
    """Fits the codes that a generator draws to the released means of real codes; the decoder is left as it is.

    Privacy: post-processing of the released means; no private value is read. Until ``target`` is set it is empty.
    """

    def __init__(self, generator: DecoderGenerator, embedding: CodeEmbedding, settings: CodeEmbeddingConfig) -> None:
        classes, device = generator.config.classes or 1, embedding.of_codes.frequencies.device
        nothing = NoisyMeans(
            torch.zeros(classes, embedding.count - 1, device=device), torch.full((classes,), 1 / classes, device=device)
        )
        super().__init__(generator, embedding, nothing, settings)
        self._drawing, self._of_codes = generator, embedding.of_codes

    def loss(self, random: torch.Generator) -> Tensor:
        """Squared distance of the codes of a fresh batch from the target."""
        labels = self.labels(random)
        codes = self._drawing.code(self.generator.draw_latent(len(labels), random), labels)
        return distance(codes, labels, self._of_codes, self.target)
