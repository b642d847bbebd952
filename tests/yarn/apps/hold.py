"""hold.py DIRECTORY: runs tasks without end, each writing whose GPU it has, to a file for each
container in DIRECTORY/seen, until there is a file DIRECTORY/stop; none while there is a file
DIRECTORY/pause."""

import json
import os
import sys
import time

from pyspark import TaskContext
from pyspark.sql import SparkSession

directory = sys.argv[1]
seen = os.path.join(directory, "seen")
os.makedirs(seen, exist_ok=True)
spark = SparkSession.builder.appName("hold").getOrCreate()


def hold(_):
    addresses = TaskContext.get().resources()["gpu"].addresses
    container = os.environ["CONTAINER_ID"]
    for _ in range(10):
        # Since boot, as the agent's audit log has it.
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        with open(os.path.join(seen, container), "a") as file:
            file.write(json.dumps({"at": now, "addresses": addresses}) + "\n")
        time.sleep(0.05)


while not os.path.exists(os.path.join(directory, "stop")):
    if os.path.exists(os.path.join(directory, "pause")):
        time.sleep(0.1)
    else:
        spark.sparkContext.parallelize(range(4), 4).foreach(hold)
spark.stop()
