"""What a node is that will be killed: it keeps its marks in FOLDER, and starts a program of this folder.

Usage: leaver.py FOLDER PROGRAM ARGS... Prints what the program prints, and sleeps.
"""

import asyncio
import sys
from pathlib import Path

from crewlet.adapters.process import LocalPrograms, MarkBook
from crewlet.ports.programs import ProgramSpec


async def main() -> None:
    programs = LocalPrograms(marks=MarkBook(Path(sys.argv[1]) / "programs"))
    await programs.end_left()
    script = str(Path(__file__).with_name(sys.argv[2]))
    program = await programs.spawn(ProgramSpec((sys.executable, script, *sys.argv[3:]), {}))
    async for line in program.lines():
        print(line.decode(), flush=True)
    await asyncio.sleep(60)


asyncio.run(main())
