"""The registry: which methods exist and where each lives. Importing it imports no torch."""

from __future__ import annotations

from importlib import import_module

from understudy.errors import InputError
from understudy.methods.base import Method

ANNOTATED = "annotated"  # what ``methods.annotation`` calls itself: it begins with a release, so it is not registered
_METHODS = {
    "bdp-gan": "understudy.methods.adversarial.bdp_gan:BdpGan",
    "datalens": "understudy.methods.teachers.datalens:DataLens",
    "dp-cgan": "understudy.methods.adversarial.dp_cgan:DpCgan",
    "dp-diffusion": "understudy.methods.diffusion.dp_diffusion:DpDiffusion",
    "dp-hp": "understudy.methods.embedding.dp_hp:DpHp",
    "dp-merf": "understudy.methods.embedding.dp_merf:DpMerf",
    "dp-merf-ae": "understudy.methods.embedding.dp_merf_ae:DpMerfAe",
    "dp-sinkhorn": "understudy.methods.transport.dp_sinkhorn:DpSinkhorn",
    "dpgan": "understudy.methods.adversarial.dpgan:DpGan",
    "g-pate": "understudy.methods.teachers.g_pate:GPate",
    "fedavg-gan": "understudy.federated.fedavg_gan:FedAvgGan",
    "gan": "understudy.methods.adversarial.gan:Gan",
    "gs-wgan": "understudy.methods.critics.gs_wgan:GsWgan",
    "gs-wgan-federated": "understudy.federated.gs_wgan:GsWganFederated",
    "pate-gan": "understudy.methods.teachers.pate_gan:PateGan",
}


def method_names() -> list[str]:
    """All registered methods, sorted."""
    return sorted(_METHODS)


def get_method(name: str) -> Method:
    """The method of that name."""
    if name not in _METHODS:
        raise InputError(f"method: {name!r} is unknown; choose one of {', '.join(method_names())}")
    module, _, attribute = _METHODS[name].partition(":")
    method: Method = getattr(import_module(module), attribute)()
    return method
