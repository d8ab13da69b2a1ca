"""Jobs as tasks of a Ray cluster, here one that is only pretended."""

import os
import sys

import pytest
from comparison_kit import board_of, fake_job

from app.common.errors import UserError
from app.experiments.engines.processes import StopRequest
from app.experiments.engines.ray_engine import ATTEMPTS, RETRIES, RayEngine


class FakeRay:
    """Runs tasks at once in this process and records the calls."""

    class exceptions:
        """Those that the engine knows."""

        class RayError(Exception):
            """Any."""

        class TaskCancelledError(RayError):
            """After a cancellation."""

    def __init__(self, nodes=({"CPU": 8.0},), refusals=0):
        self.connections, self.options, self.cancelled, self.refusals = [], {}, [], refusals
        self.resources, self.closed, self.dead = nodes, 0, set()

    def init(self, **options):
        self.connections.append(options)
        if self.refusals:
            self.refusals -= 1
            raise Exception("timed out")

    def nodes(self):
        return [{"Alive": True, "Resources": dict(node)} for node in self.resources]

    def remote(self, **options):
        """A task is the call itself."""
        self.options = options

        def decorate(function):
            class Task:
                def remote(self, job, share):
                    return (function, job, share)

            return Task()

        return decorate

    def wait(self, tasks, num_returns, timeout):
        return tasks[:num_returns], tasks[num_returns:]

    def get(self, task):
        function, job, share = task
        if job.name in self.dead:
            raise self.exceptions.RayError
        if task in self.cancelled:
            raise self.exceptions.TaskCancelledError
        return function(job, share)

    def cancel(self, task, force):
        self.cancelled.append(task)

    def shutdown(self):
        self.closed += 1


@pytest.fixture
def cluster(monkeypatch):
    """Puts a pretended Ray in the place of the real one."""

    def install(**settings):
        fake = FakeRay(**settings)
        monkeypatch.setitem(sys.modules, "ray", fake)
        monkeypatch.setattr(os, "environ", os.environ.copy())
        return fake

    return install


def test_tasks_report_their_ends(folder, cluster):
    """One finishes, one fails, one loses its worker for good; the cluster is let go."""
    fake = cluster()
    fake.dead = {"c"}
    jobs = [fake_job(folder, "a"), fake_job(folder, "b", "fail"), fake_job(folder, "c")]
    board, _ = board_of(folder, jobs)
    with StopRequest() as stop:
        RayEngine(None, 2).run(jobs, board, stop)
    assert [(failure.job.name, failure.code) for failure in board.failures] == [("b", 1), ("c", 137)]
    assert (folder.run("a") / "summary.json").is_file()
    assert fake.options == {"num_cpus": 4, "num_gpus": 0, "max_retries": RETRIES}
    assert fake.closed == 1


def test_stopping_cancels_tasks(folder, cluster):
    """Cancelled runs are no failures."""
    fake = cluster()
    jobs = [fake_job(folder, "a"), fake_job(folder, "b")]
    board, _ = board_of(folder, jobs)
    with StopRequest() as stop:
        stop.count = 1
        RayEngine(None, 2).run(jobs, board, stop)
    assert [job.name for job in board.interrupted] == ["a", "b"]
    assert not folder.run("a").exists()
    assert {job.name for _, job, _ in fake.cancelled} == {"a", "b"}


@pytest.mark.parametrize(
    ("nodes", "requested", "workers", "threads", "gpus"),
    [
        ([{"CPU": 8.0}], None, 4, 2, 0),
        ([{"CPU": 8.0}], 2, 2, 4, 0),
        ([{"CPU": 4.0}, {"CPU": 4.0}], 1, 1, 4, 0),  # a task does not span two nodes
        ([{"CPU": 16.0, "GPU": 2.0}, {"CPU": 16.0, "GPU": 2.0}], None, 4, 8, 1),
        ([{"CPU": 1.0}], None, 1, 1, 0),
    ],
)
def test_shares_of_a_cluster(nodes, requested, workers, threads, gpus, folder, cluster):
    """Every task gets its part of the cores, no more than a node has, and a GPU where there are some."""
    fake = cluster(nodes=nodes)
    engine = RayEngine(None, requested)
    board, _ = board_of(folder, [])
    with StopRequest() as stop:
        engine.run([], board, stop)
    assert (engine.workers, fake.options["num_cpus"], fake.options["num_gpus"]) == (workers, threads, gpus)


@pytest.mark.parametrize(
    ("per_run", "requested", "workers", "devices"), [(2, None, 3, 2), (0.5, None, 14, 1), (4, 8, 1, 4), (1, 2, 2, 1)]
)
def test_gpus_of_each_task(per_run, requested, workers, devices, folder, cluster):
    """Ray hands out several GPUs or a part of one; a run does not span two nodes, here with 4 and 3 GPUs."""
    fake = cluster(nodes=[{"CPU": 16.0, "GPU": 4.0}, {"CPU": 16.0, "GPU": 3.0}])
    engine, job = RayEngine(None, requested, per_run), fake_job(folder, "a")
    board, _ = board_of(folder, [job])
    with StopRequest() as stop:
        engine.run([job], board, stop)
    assert (engine.workers, fake.options["num_gpus"]) == (workers, per_run)
    assert f"'--trainer.devices', '{devices}'" in (folder.run("a") / "seen").read_text()


def test_more_gpus_than_a_node_has(cluster):
    """The message says what the largest node has, and the cluster is let go."""
    fake = cluster(nodes=[{"CPU": 16.0, "GPU": 4.0}, {"CPU": 16.0, "GPU": 3.0}])
    with pytest.raises(UserError, match="--gpus_per_run is 6, and no machine has more than 4 GPUs"):
        RayEngine(None, None, 6)
    assert fake.closed == 1


def test_own_cluster_listens_on_loopback_only(cluster):
    """Without an address, whatever the environment says about other clusters."""
    fake = cluster()
    RayEngine(None, 1)
    [options] = fake.connections
    assert options["address"] == "local"
    assert options["_node_ip_address"] == "127.0.0.1"
    assert options["include_dashboard"] is False


def test_busy_machine(cluster):
    """Starting is tried again, and given up with a reason; a given address is tried once."""
    cluster(refusals=ATTEMPTS - 1)
    RayEngine(None, 1)
    fake = cluster(refusals=ATTEMPTS)
    with pytest.raises(UserError, match=r"no Ray cluster could be started here: timed out(.|\n)*leave out --engine"):
        RayEngine(None, 1)
    assert len(fake.connections) == ATTEMPTS
    fake = cluster(refusals=1)
    with pytest.raises(UserError, match="there is no Ray cluster at nowhere:1"):
        RayEngine("nowhere:1", 1)
    assert len(fake.connections) == 1


def test_without_ray(monkeypatch):
    """What to install."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'rampart-fl\[ray\]'"):
        RayEngine(None, 1)


def test_worker_threads_are_reported(folder, cluster):
    """A worker is not bound to cores, so a new run is passed how many threads it may use."""
    cluster()
    job = fake_job(folder, "a")
    board, _ = board_of(folder, [job])
    with StopRequest() as stop:
        RayEngine(None, 4).run([job], board, stop)
    assert "'--model.workers', '2'" in (folder.run("a") / "seen").read_text()
