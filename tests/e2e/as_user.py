"""Runs a statement as another user: `as_user.py UID SOCKET STATEMENT` prints the rows or the error."""

import os
import sys

from flight_sql import Client
from pyarrow import flight

uid, socket, statement = int(sys.argv[1]), sys.argv[2], sys.argv[3]
# After the imports: the libraries may lie where only their owner may look.
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
os.chdir("/")
with Client(socket) as client:
    try:
        print(client.rows(statement))
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
        sys.exit(1)
