"""The registry: which methods exist and where each lives. Importing it imports no torch."""

from __future__ import annotations

from importlib import import_module

from understudy.errors import InputError
from understudy.methods.base import Method

_METHODS = {
    "bdp-gan": "understudy.methods.bdp_gan:BdpGan",
    "datalens": "understudy.methods.datalens:DataLens",
    "dp-cgan": "understudy.methods.dp_cgan:DpCgan",
    "dp-hp": "understudy.methods.dp_hp:DpHp",
    "dp-merf": "understudy.methods.dp_merf:DpMerf",
    "dp-merf-ae": "understudy.methods.dp_merf_ae:DpMerfAe",
    "dp-sinkhorn": "understudy.methods.dp_sinkhorn:DpSinkhorn",
    "dpgan": "understudy.methods.dpgan:DpGan",
    "g-pate": "understudy.methods.g_pate:GPate",
    "fedavg-gan": "understudy.methods.fedavg_gan:FedAvgGan",
    "gan": "understudy.methods.gan:Gan",
    "gs-wgan": "understudy.methods.gs_wgan:GsWgan",
    "gs-wgan-federated": "understudy.methods.gs_wgan_federated:GsWganFederated",
    "pate-gan": "understudy.methods.pate_gan:PateGan",
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


def get_federated_method(name: str) -> Method:
    """The method of that name, which must be one whose data stay with their clients."""
    method = get_method(name)
    if not method.federated:
        raise InputError(f"method: {name} cannot be federated; choose gs-wgan-federated or fedavg-gan")
    return method
