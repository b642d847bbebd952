"""resources.py DIRECTORY: writes what Spark says of each task to DIRECTORY/tasks.json."""

import json
import os
import sys

from pyspark import TaskContext
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("resources").getOrCreate()


def task(numbers):
    resources = TaskContext.get().resources()
    yield {
        "sum": sum(numbers),
        "container": os.environ["CONTAINER_ID"],
        "addresses": {name: resource.addresses for name, resource in resources.items()},
    }


tasks = spark.sparkContext.parallelize(range(100), 8).mapPartitions(task).collect()
with open(os.path.join(sys.argv[1], "tasks.json"), "w") as file:
    json.dump(tasks, file)
spark.stop()
