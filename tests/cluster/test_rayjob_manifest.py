"""The KubeRay manifest: what its schema allows, and nothing that reaches beyond the cluster."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import hpxfer

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "sweeps" / "cluster"
SCHEMA = json.loads((Path(__file__).parent / "rayjob_schema.json").read_text(encoding="utf-8"))


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTER / "rayjob.yaml").read_text(encoding="utf-8")))


def rayjob() -> dict[str, Any]:
    (found,) = [one for one in documents() if one["kind"] == "RayJob"]
    return found


def templates(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod specs of the head and of each worker group."""
    cluster = job["spec"]["rayClusterSpec"]
    return [one["template"]["spec"] for one in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def pinned(package: str) -> str:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    (version,) = re.findall(rf"^{package}==(\S+)$", text, re.MULTILINE)
    return str(version)


def test_the_manifest_fits_its_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(rayjob())


def _misspell(job: dict[str, Any]) -> None:
    job["spec"]["rayClusterSpec"]["headGroupspec"] = job["spec"]["rayClusterSpec"].pop("headGroupSpec")


def _number(job: dict[str, Any]) -> None:
    job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] = 0


def _no_most(job: dict[str, Any]) -> None:
    del job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["maxReplicas"]


def _bad_quantity(job: dict[str, Any]) -> None:
    templates(job)[0]["containers"][0]["resources"]["limits"]["memory"] = "8 GB"


def _unknown_mode(job: dict[str, Any]) -> None:
    job["spec"]["rayClusterSpec"]["authOptions"]["mode"] = "password"


@pytest.mark.parametrize("harm", [_misspell, _number, _no_most, _bad_quantity, _unknown_mode])
def test_the_schema_refuses_what_kubernetes_would(harm: Callable[[dict[str, Any]], None]) -> None:
    job = copy.deepcopy(rayjob())
    harm(job)
    assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(job))


def test_versions_are_those_that_the_tests_run_with() -> None:
    ray = pinned("ray")
    assert rayjob()["spec"]["rayClusterSpec"]["rayVersion"] == ray
    assert f"\nFROM rayproject/ray:{ray}-py311\n" in (CLUSTER / "Dockerfile").read_text(encoding="utf-8")
    images = {one["image"] for spec in templates(rayjob()) for one in spec["containers"]}
    assert images == {f"REGISTRY/hpxfer:{hpxfer.__version__}"}


def test_nothing_reaches_beyond_the_cluster_and_the_token_stays_on() -> None:
    cluster = rayjob()["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert cluster["headGroupSpec"]["enableIngress"] is False
    text = (CLUSTER / "rayjob.yaml").read_text(encoding="utf-8")
    assert not re.search(r"NodePort|LoadBalancer|hostNetwork|hostPort|privileged|RAY_AUTH_MODE", text)
    assert all(spec["securityContext"]["runAsNonRoot"] for spec in templates(rayjob()))


def test_every_mount_has_its_volume_and_all_pods_share_the_results() -> None:
    (claim,) = [one for one in documents() if one["kind"] == "PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for spec in templates(rayjob()):
        volumes = {one["name"]: one for one in spec["volumes"]}
        mounts = {
            one["name"]: one["mountPath"] for container in spec["containers"] for one in container["volumeMounts"]
        }
        assert mounts.keys() == volumes.keys()
        assert mounts["results"] == "/results"
        assert volumes["results"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_the_entrypoint_is_a_command_of_ours() -> None:
    from typer.main import get_command

    from hpxfer.cli.app import app

    program, command, *arguments = rayjob()["spec"]["entrypoint"].split()
    assert program == "hpxfer"
    found = get_command(app).commands[command]  # type: ignore[attr-defined]
    options = {name for parameter in found.params for name in parameter.opts}
    assert {one for one in arguments if one.startswith("--")} <= options
    mounts = {one["mountPath"] for spec in templates(rayjob()) for one in spec["containers"][0]["volumeMounts"]}
    assert {
        str(Path(one).parent) if one.endswith(".yaml") else one for one in arguments if one.startswith("/")
    } == mounts


def test_ray_sends_no_usage_statistics() -> None:
    for template in templates(rayjob()):
        for container in template["containers"]:
            assert {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"} in container["env"], container["name"]
