"""A process that starts one program and waits: what a node is to its programs. Prints the program's process id."""

import asyncio
import sys

from crewlet.adapters.process import LocalPrograms
from crewlet.ports.programs import ProgramSpec


async def main() -> None:
    program = await LocalPrograms().spawn(ProgramSpec((sys.executable, "-c", "import time; time.sleep(60)"), {}))
    # Threads come and go in a node; the program must not go with one of them.
    await asyncio.gather(*(asyncio.to_thread(int) for _ in range(4)))
    await asyncio.get_running_loop().shutdown_default_executor()
    print(program.pid, flush=True)
    await asyncio.sleep(60)


if sys.argv[1] == "uvloop":
    import uvloop

    uvloop.run(main())
else:
    asyncio.run(main())
