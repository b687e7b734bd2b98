"""Settings of methods with teachers that none of them can do without; importing them imports no torch."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from understudy.training.settings import Count, CriticSettings, EmbeddingSettings, GeneratorSettings


class TeachingSettings(BaseModel):
    """The game between the generator and its teachers; nothing here changes epsilon."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    queries_per_step: Count = 16  # B
    teachers: CriticSettings = CriticSettings(learning_rate=2e-3, batch=16, per_step=200, warm_iterations=80)
    generator: GeneratorSettings = GeneratorSettings(latent=4, learning_rate=2e-3, average_decay=0.95)
    embedding: EmbeddingSettings = EmbeddingSettings(steps=2000, batch=300)


class RehearsingSettings(TeachingSettings):
    """The same for methods whose teachers answer with gradients."""

    memory: Count = 48  # steps whose answers the generator learns from together
