"""Spark applications on a `Cluster`, by spark-submit of the pyspark that `scripts/setup` fetched."""

import os
import subprocess
import tempfile
from pathlib import Path

from cluster import JARS, Cluster, share


class Spark:
    """Submits applications, as `user` where this is root.

    Their files are below `spark-*/` of the cluster's directory: `python/pyspark/` (with `jars/`),
    and for each application a directory `N` with its script and its output.
    """

    def __init__(self, cluster: Cluster, user: str | None = None):
        self.cluster, self.user = cluster, user
        self.directory = Path(tempfile.mkdtemp(prefix="spark-", dir=cluster.directory))
        self.directory.chmod(0o1777)
        share(JARS / "pyspark", self.directory / "python")
        self.home = self.directory / "python" / "pyspark"
        self.environment = cluster.environment | {
            "SPARK_HOME": str(self.home),
            "PYTHONPATH": str(self.directory / "python"),
            # One that every user may run, which an environment below a closed home isn't.
            "PYSPARK_PYTHON": "/usr/bin/python3",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self.applications = []

    def options(self, mode: str, executors: int, conf: dict[str, object]) -> list[str]:
        """What all applications are submitted with."""
        fast_start = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        settings = {
            # No upload of 300 MB.
            "spark.yarn.jars": f"local:{self.home}/jars/*",
            "spark.yarn.stagingDir": f"file://{self.cluster.directory}/staging",
            "spark.yarn.am.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": 1,
            "spark.executor.instances": executors,
            "spark.ui.enabled": "false",
            "spark.yarn.report.interval": 300,
            "spark.yarn.scheduler.initial-allocation.interval": "100ms",
            "spark.yarn.scheduler.heartbeat.interval-ms": 300,
            "spark.yarn.appMasterEnv.PYSPARK_PYTHON": "/usr/bin/python3",
            "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
            "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
            "spark.driver.extraJavaOptions": fast_start,
            "spark.executor.extraJavaOptions": fast_start,
            "spark.yarn.am.extraJavaOptions": fast_start,
            "spark.executor.resource.gpu.amount": 1,
            "spark.task.resource.gpu.amount": 1,
            "spark.executor.resource.gpu.discoveryScript": self.cluster.directory
            / "bin"
            / "getGpusResources.sh",
        } | conf
        flags = ["--master", "yarn", "--deploy-mode", mode]
        for key, value in settings.items():
            flags += ["--conf", f"{key}={value}"]
        return flags

    def submit(
        self,
        script: Path,
        *arguments: str,
        mode: str = "client",
        executors: int = 1,
        conf: dict[str, object] | None = None,
        files: tuple[Path, ...] = (),
    ) -> "Submission":
        """Submits a script. Its first argument is the application's directory."""
        directory = self.directory / str(len(self.applications))
        directory.mkdir()
        directory.chmod(0o1777)
        script = share(script, directory / script.name)
        command = [self.home / "bin" / "spark-submit", *self.options(mode, executors, conf or {})]
        if files:
            command += ["--files", ",".join(map(str, files))]
        submission = Submission(
            directory, [*command, script, directory, *arguments], self.environment, self.user
        )
        self.applications.append(submission)
        return submission

    def end(self) -> None:
        for application in self.applications:
            application.kill()

    def __enter__(self) -> "Spark":
        return self

    def __exit__(self, *_) -> None:
        self.end()


class Submission:
    """A spark-submit, which in client mode is the driver too."""

    def __init__(self, directory: Path, command: list, environment: dict, user: str | None):
        self.directory = directory
        self.command = [str(word) for word in command]
        with open(directory / "stdout", "wb") as out, open(directory / "stderr", "wb") as err:
            self.process = subprocess.Popen(
                # However this process ends, no driver outlives it.
                ["setpriv", "--pdeathsig", "KILL", *self.command],
                env=environment,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                user=user,
                start_new_session=True,
            )

    def stdout(self) -> str:
        return (self.directory / "stdout").read_text(errors="replace")

    def stderr(self) -> str:
        return (self.directory / "stderr").read_text(errors="replace")

    def tail(self) -> str:
        return "\n".join(self.stderr().splitlines()[-60:])

    def wait(self, seconds: float = 120) -> str:
        """Its standard output, once it has ended well."""
        self.process.wait(seconds)
        assert self.process.returncode == 0, self.tail()
        return self.stdout()

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
            self.process.wait()
